#include "builtin_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <vector>

#include "ds4/sampling.hpp"

namespace ds4::bench {
namespace {

// clang-format off: lists read best as written
constexpr std::string_view people[] = {
    "Adela", "Bram", "Corin", "Dorothea", "Edmund", "Fenna", "Gregor", "Hanne", "Ivo", "Josephine", "Kasper",
    "Lydia", "Matthias", "Nora", "Oswin", "Petra", "Quentin", "Rosalind", "Stellan", "Tamsin", "Ulrich",
    "Verena", "Wendel", "Ysolde", "old Marten", "the widow Hale", "the younger Brandt", "Captain Orme",
    "the schoolmaster", "the harbour clerk", "the miller's son", "the doctor"};
constexpr std::string_view places[] = {
    "the harbour", "the upper market", "the salt house", "the church of the Three Lamps", "the ropewalk",
    "the old customs hall", "the mill pond", "the north gate", "the lighthouse", "the quarry road",
    "the reading room", "the ferry landing", "the baker's yard", "the orchard above the town",
    "the bridge of barrels", "the long stairs", "the tannery", "the eastern breakwater", "the town archive",
    "the inn at the crossroads"};
constexpr std::string_view things[] = {
    "a brass lantern", "a ledger bound in green cloth", "a crate of lemons", "a torn chart", "a copper kettle",
    "a set of chisels", "a letter without a seal", "a sack of barley", "a silver whistle", "a broken clock",
    "a coil of new rope", "a basket of eels", "a violin with three strings", "a map of the inner islands",
    "a pane of coloured glass", "a box of type from the printer", "a wheel of hard cheese",
    "a pair of spectacles", "a drum of lamp oil", "a bundle of willow rods"};
constexpr std::string_view times[] = {
    "in the spring", "late in the autumn", "on the shortest day of the year", "before the first ferry",
    "after the evening bell", "during the week of the fair", "in the third year of the drought",
    "a little before noon", "when the herring came back", "on the morning after the storm",
    "towards the end of winter", "while the bridge was closed", "at the hour when the lamps are lit",
    "on market day", "in the year of the two floods", "when the snow had gone"};
constexpr std::string_view trades[] = {
    "a glazier", "a cooper", "a pilot", "a midwife", "a bookbinder", "a carter", "a surveyor", "a net maker",
    "a printer", "a clockmaker", "a dyer", "a stonemason", "a notary", "a beekeeper", "a shipwright", "a weaver"};
constexpr std::string_view numbers[] = {
    "two", "three", "four", "five", "seven", "nine", "eleven", "twelve", "fifteen", "twenty", "thirty", "forty"};

// $n and $m are two people, $p and $q two places, $o a thing, $t a time, $w a trade, $k a number.
constexpr std::string_view sentences[] = {
    "$T $n came down to $p with $o under one arm and no explanation to offer.",
    "Nobody at $p remembered who had ordered $o, but everybody had an opinion about what it must have cost.",
    "$N had trained as $w and still measured every room by eye before sitting down.",
    "The road from $p to $q takes an hour on foot, and rather longer with a cart.",
    "It was said that $n once carried $o all the way to $q for a wager of $k coins.",
    "$T the council met at $p and talked for $k hours about the price of timber.",
    "The council decided nothing, which was also a decision, as $n remarked on the way out.",
    "There were $k boats in the bay that evening, and only one of them showed a light.",
    "$N wrote down the names of the boats, as was the custom, and put the list in a drawer.",
    "When the drawer was opened again, the list had been replaced by $o.",
    "\"You cannot repair what you have not understood,\" said $n, and put the tools back in order.",
    "\"And you cannot understand it while it is still in one piece,\" answered $m.",
    "The wind had turned to the east, and at $p the ropes began to hum.",
    "Anyone who has worked as $w knows that the last tenth of the work takes half of the time.",
    "$N did not like to be hurried, and therefore always arrived $k minutes early.",
    "Between $p and $q there is a wall on which the heights of the floods are marked with iron pins.",
    "The highest pin is above the head of a tall man, and children do not believe in it.",
    "$T the water stood at the lowest pin for $k days and then withdrew without doing any harm.",
    "$M kept the accounts, and the accounts were correct, though nobody could read the writing.",
    "In the archive there is a note by $n which mentions $o and then breaks off in the middle of a word.",
    "The rest of the page was used to light a stove, according to $m, who had lit the stove.",
    "A traveller asked at $p for the shortest way to $q and was told three different ones.",
    "All three were right, since the town is built on a hill and every street leads around it.",
    "$N had a theory about this, as about most things, and explained it to whoever was waiting for the ferry.",
    "The theory was simple: what goes up slowly comes down quickly, and the other way round.",
    "$T the price of bread rose by a fifth, and $n bought $o instead.",
    "It was not a sensible purchase, but it was remembered longer than the price of bread.",
    "Behind $p lies a garden that belongs to no one, and for that reason it is well kept.",
    "$M planted beans there, $n planted roses, and the goats of the tannery took an equal share of both.",
    "For $k years the clock at $p had been slow by a quarter of an hour, and the town had grown used to it.",
    "When $w from the capital set it right, the ferry left without half of its passengers.",
    "The next day the clock was slow again, and nobody asked how that had come about.",
    "$N learned to read at the age of $k, from labels on boxes, and never lost the habit of reading boxes first.",
    "On the box in question stood the name of a ship, a weight, and a warning in a language that only $m knew.",
    "The warning said that the contents should be kept dry and should not be discussed.",
    "So the box was carried to $p, where it is dry, and discussed there.",
    "$T a lamp was seen moving along the shore below $q, always at the same height and always alone.",
    "The pilots said it was a fisherman, the fishermen said it was a pilot, and $n said nothing.",
    "In those days a letter to the inner islands took $k days, and the answer took as long as it liked.",
    "$M answered every letter on the day it came, on the back of the same sheet, to save paper.",
    "There is a rule in the harbour that the smaller boat gives way, and another that the older captain is right.",
    "Most of the disputes that $n had to settle arose where the two rules met.",
    "$N settled them by asking both captains to describe the accident in the words of the other.",
    "The method took $k hours, and nobody ever came back with the same dispute.",
    "The salt that is stored near $p comes from pans in the south, where the summers are longer.",
    "It is sold by weight, and since it draws water from the air it is sold quickly when the weather is wet.",
    "$M noticed this first and built a roof; the roof paid for itself in $k weeks.",
    "$T $n opened the door of the workshop and found $o on the bench, with a label that said only \"later\".",
    "It stayed on the bench for $k years, and in the end it was the bench that was sold around it.",
    "The children of the town have a game in which one of them is the harbour and the others are ships.",
    "The harbour must not move, and the ships must not speak, and the game ends when somebody laughs.",
    "$N, who was $w by trade and a poor loser by nature, was the best harbour anyone had seen.",
    "A bell hangs at $p that is rung for fire, for fog and for weddings, each in its own way.",
    "Strangers cannot hear the difference, and have been known to bring buckets to a wedding.",
    "$T the fog lay so thick on the water that $m walked off the end of the quay while explaining the tides.",
    "$N pulled the speaker out with a boathook, and the explanation was finished beside the stove.",
    "According to that explanation the sea rises twice a day because it is curious.",
    "The town has $k wells, of which one is salt, one is locked, and the others are shared by arrangement.",
    "The arrangement was written by $w and is so clear that no one has ever needed to consult it.",
    "$M consulted it once, out of interest, and found $o pressed between the pages.",
    "If you stand at $q early enough, you can hear the bakers before you can smell the bread.",
    "They sing in two parts, and the upper part is always a little late, because of the ovens.",
    "$N used to say that a good loaf and a good argument need the same thing, which is to be left alone for a night.",
    "The argument about the bridge was left alone for $k years and came out much improved.",
    "In the end they built it of barrels, since there were barrels, and it floats to this day.",
    "$T the first cart crossed it, driven by $n, loaded with $o and with great seriousness.",
    "Half of the town watched from $p and the other half from $q, and each half claims to have cheered first.",
    "A surveyor measured the bridge and found that it was longer on the way back.",
    "$M repeated the measurement with a better chain and got the same result, but did not publish it.",
    "Glass is made from sand and patience, and of the two the sand is easier to come by.",
    "$N kept a window from the old church, wrapped in straw, and showed it to visitors for nothing.",
    "Through the red pane the harbour looked as if it were burning, and through the blue one as if it had drowned.",
    "Most visitors preferred the plain pane, through which one could see what was going on.",
    "$T there was a trial at $p about a cow that had eaten the evidence in an earlier trial.",
    "The cow was represented by $m, who had no experience in law but a good deal in cows.",
    "The verdict was read aloud by $n, slowly, because the ink had run, and everyone agreed to it.",
    "Since then all evidence is kept on the upper floor of $q, which cows do not like.",
    "The ropewalk is $k hundred paces long, and a rope can be no longer than the place where it is made.",
    "That is why the anchors of the town are famous for being close.",
    "$N knew every knot that has a name and several that had been forbidden.",
    "\"A knot is a promise,\" said $m, \"and like a promise it should be possible to undo it without a knife.\"",
    "$T a ship came in with all its sails dyed yellow, and the captain would not say why.",
    "The dyers guessed saffron, the sailors guessed sulphur, and the tax collector guessed at the value.",
    "It turned out to be onions, $k tons of them, and the whole quarter wept for a week.",
    "Nothing else of importance happened that month, if one leaves out the founding of the library.",
    "The library began with $o, a shelf, and a promise by $n to bring back what had been borrowed.",
    "Today it holds $k hundred volumes, and the promise has been inherited by three generations.",
    "$M reads there every evening, always the same book, because it is so badly written that it never ends the same way.",
    "Whoever wants to understand the place should begin with its noises: the chain of the ferry, the gulls, the saws.",
    "After that come the smells, in which tar leads, followed by bread, fish and wet stone.",
    "Only then should one look, and best from $p, where the roofs lie below like a pile of slates somebody forgot.",
    "$N drew that view $k times and sold the drawing each time to the same customer.",
    "The customer kept them in a chest and could tell by the smoke from the chimneys on which day each was made.",
    "$T the lighthouse keeper fell ill, and $n took over the lamp without being asked.",
    "For $k nights no ship went wrong, though one of them, by mistake, arrived before it had been expected.",
    "The keeper, once recovered, complained that the lamp had been cleaned and could now be seen from everywhere.",
    "There are people who count the waves and people who count the boats, and they do not marry each other.",
    "$M was an exception in this as in other respects, and counted $o.",
    "A good pilot does not know where the rocks are; a good pilot knows where they are not.",
    "$N repeated this sentence to every apprentice, and every apprentice wrote it down the wrong way round.",
    "It makes no difference until the fog comes.",
    "At $q one can still see the iron ring to which the first boat was tied, or so it says on the sign.",
    "The sign was painted by $m, who was paid by the letter and had a gift for long words.",
    "$T somebody crossed out half of them, and the sign became both shorter and true.",
    "In the town hall hangs a portrait of a mayor who served for $k days and did nothing wrong.",
    "It is the only portrait there, and new mayors are shown to it before they take the oath.",
    "$N took the oath twice, since the first time the clerk had sneezed at the decisive word.",
    "Of the great fire it is told that it began at $p and ended at $q, having gone around the houses of the careful.",
    "The careful had wet their roofs; the others had gone to look at the fire.",
    "What was rebuilt was built in stone, with $k stairs where there had been a ladder.",
    "$M saved $o and lost a good coat, and considered the exchange a fair one.",
    "Whether the story is true cannot be decided any more, but it is told with the same words every time.",
    "That is how one recognises either a true story or a good liar, and $n was known for honesty.",
    "The evening ended, as evenings at $p do, with a song that has more verses than anybody can remember.",
    "$N went home by way of $q, counted the lamps, found one too many, and slept badly.",
    "In the morning the extra lamp was gone, and so was the ship with the yellow sails."};

constexpr std::string_view chapter_subjects[] = {
    "Of Ropes and Promises", "The Clock That Was Slow", "What the Ferry Carried", "A Dispute About Water", "The Yellow Sails",
    "How the Bridge Was Built", "Letters from the Inner Islands", "The Lamp on the Shore", "Accounts of a Dry Year",
    "The Library and Its Only Rule", "Concerning the Great Fire", "A Winter at the Lighthouse"};
// clang-format on

constexpr size_t sentence_count = std::size(sentences);

class Chronicle {
 public:
  std::string tell(size_t bytes) {
    std::string text;
    for (size_t chapter = 1; text.size() < bytes; ++chapter) {
      text += fmt::format("{}Chapter {}. {}\n\n", chapter == 1 ? "" : "\n", chapter, pick(chapter_subjects));
      const size_t paragraphs = 8 + below(9);
      for (size_t i = 0; i < paragraphs && text.size() < bytes; ++i) text += paragraph() + "\n\n";
    }
    return text;
  }

 private:
  size_t below(size_t count) { return static_cast<size_t>(random_.next() >> 33) % count; }

  template <size_t N>
  std::string_view pick(const std::string_view (&list)[N]) {
    return list[below(N)];
  }

  template <size_t N>
  std::string_view pick_other(const std::string_view (&list)[N], std::string_view than) {
    std::string_view choice = pick(list);
    while (choice == than) choice = pick(list);
    return choice;
  }

  // Some sentences belong together, so a paragraph takes a few in their order, then goes elsewhere.
  std::string paragraph() {
    const std::string_view name = pick(people), other = pick_other(people, name);
    const std::string_view place = pick(places), second_place = pick_other(places, place);
    std::string text;
    const size_t runs = 2 + below(3);
    for (size_t run = 0; run < runs; ++run) {
      const size_t first = below(sentence_count), length = 1 + below(4);
      for (size_t i = first; i < std::min(first + length, sentence_count); ++i) {
        if (std::find(recent_.begin(), recent_.end(), i) != recent_.end()) continue;
        remember(i);
        if (!text.empty()) text += ' ';
        text += fill(sentences[i], name, other, place, second_place);
      }
    }
    return text.empty() ? paragraph() : text;
  }

  void remember(size_t sentence) {
    recent_.push_back(sentence);
    if (recent_.size() > sentence_count / 2) recent_.erase(recent_.begin());
  }

  std::string fill(std::string_view sentence, std::string_view name, std::string_view other,
                   std::string_view place, std::string_view second_place) {
    std::string text;
    for (size_t i = 0; i < sentence.size(); ++i) {
      if (sentence[i] != '$') {
        text += sentence[i];
        continue;
      }
      const char slot = sentence[++i];
      std::string word(word_for(static_cast<char>(slot | 0x20), name, other, place, second_place));
      if (slot < 'a') word[0] = static_cast<char>(word[0] & ~0x20);
      text += word;
    }
    return text;
  }

  std::string_view word_for(char slot, std::string_view name, std::string_view other, std::string_view place,
                            std::string_view second_place) {
    switch (slot) {
      case 'n':
        return name;
      case 'm':
        return other;
      case 'p':
        return place;
      case 'q':
        return second_place;
      case 'o':
        return pick(things);
      case 't':
        return pick(times);
      case 'w':
        return pick(trades);
      default:
        return pick(numbers);
    }
  }

  Rng random_{20261130};
  std::vector<size_t> recent_;
};

}  // namespace

std::string builtin_text(size_t bytes) {
  return Chronicle().tell(bytes);
}

}  // namespace ds4::bench
