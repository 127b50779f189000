"""Prose and short questions in several languages (categories language, translation, general), programming and
algorithms, sums with and without words, and the questions of `ds4-eval` without their answers."""
import json
import os

from chance import Chance
from chat import ROOT

PASSAGES = {
    "mill": "The mill at Orrin stood still for eleven years before anybody asked why. The wheel was sound, the stones were "
            "dressed, and the stream ran as it had always run. When Ada Terwin at last opened the sluice by hand, she found the "
            "gate hung from a single pin, and on the pin her grandfather's initials. He had closed it on purpose, the summer the "
            "lower village ran out of water, and had told no one, because a gift that is known has to be thanked for.",
    "ferry": "A ferry crosses the sound every forty minutes from six in the morning until ten at night; in fog it keeps to the "
             "timetable but halves its speed, so that the later boats run full. The harbour office counted 412,000 passengers "
             "last year, nine per cent more than the year before, and 31,000 bicycles. From May the fare for a bicycle rises "
             "from 1.50 to 2.00, while children under seven travel free.",
    "glass": "Glass is neither quite a liquid nor quite a solid in the way that ice is. When most melts are cooled, their "
             "molecules fall into ranks; in glass they are caught before they can. Old window panes that are thicker at the "
             "foot have not flowed: they were made uneven, and glaziers put the heavy edge down.",
    "meeting": "Present: Ilse Brandt, Tomás Rey, Wen Li, Abena Owusu (from 10:20). 1. The move to the new store is put off to "
               "14 March, since the racks arrive on the 11th. 2. Tomás reports that restoring took 38 minutes for 2.1 TB; the "
               "aim was 30. Wen will try four streams instead of two. 3. Abena asks who answers at weekends. Nobody did so far; "
               "from April there is a rota. 4. The budget is 4,200 above plan because of the second switch.",
    "letter": "Dear Ruth, you ask whether the garden forgave us the dry spring. It did, though not all of it: the beans are "
              "late, the lettuce ran to seed, and the fig, which we had given up, put out leaves in July as if nothing had "
              "happened. I have learned to water in the evening and to leave the hose where I will trip over it. Come before "
              "the pears are ripe, or you will have to eat them all. Yours, Emil",
    "law": "Whoever finds a lost thing and takes it into keeping shall report it without delay to the office of the place. If "
           "the owner comes forward within six months, the thing is to be returned against payment of the costs of keeping and "
           "a tenth of its value up to 500, a twentieth above that. If no owner comes forward, the finder acquires the thing; "
           "the finder of a thing of small value acquires it at once.",
    "orbit": "A satellite that brakes moves faster. Losing energy, it falls to a lower orbit, and lower orbits are quicker ones: "
             "at 400 kilometres a circle round the Earth takes 92 minutes, at 800 it takes 101. To catch up with a station "
             "ahead on the same path, a craft must therefore slow down, pass beneath, and climb again.",
    "recipe": "Soak 250 g of white beans overnight. Cook them with a bay leaf and without salt for about 70 minutes, until the "
              "skins break when you blow on them. Meanwhile soften an onion, a carrot and a stick of celery in oil, add two "
              "crushed cloves of garlic and 400 g of tomatoes, and let it thicken. Join both with a ladle of the water, salt, "
              "and ten minutes' patience. It is better the next day.",
    "nebbia": "La nebbia arriva dal fiume verso le quattro e si ferma contro il muro del cimitero. I vecchi dicono che aspetta "
              "qualcuno; i ragazzi ci corrono dentro con le braccia tese per vedere sparire le proprie mani. Quando suonano le "
              "sette si è già alzata, e sui vetri resta soltanto un velo in cui si può scrivere con un dito.",
    "tren": "El tren de las ocho y cuarto llegó a Valdeluz con cuarenta minutos de retraso y un solo viajero. Traía una maleta "
            "de cartón, dos jaulas vacías y una carta para una persona que había muerto en enero. El jefe de estación le ofreció "
            "café; el hombre preguntó si todavía se podía comprar un canario en aquel pueblo.",
    "marché": "Le marché se tient le jeudi depuis 1563, sauf pendant les guerres et, une fois, à cause d'un ours. On y vend ce "
              "que la terre donne, des couteaux, du drap et des promesses. Le règlement interdit toujours de peser le beurre "
              "avec les mains et oblige les marchands de volailles à se taire pendant la messe.",
    "hafen": "Der Hafen friert selten zu. Wenn es geschieht, legt die Stadt Bretter aufs Eis, und für ein paar Tage ist der Weg "
             "zur Insel ein Spaziergang. 1929 hielt das Eis sechs Wochen: Man brachte Kohle mit Schlitten hinüber und Kinder zur "
             "Schule. Wer zu spät kam, konnte zum ersten Mal nicht das Boot vorschieben.",
    "桥": "河上的旧桥只有三尺宽，两个人迎面走来，总要有一个人退回去。村里的规矩是：空手的让挑担的，年轻的让年老的；如果都挑着担、年纪也一样，"
         "就让先说话的那个人先走。所以这座桥上的人从来不沉默。",
}
TASKS = (
    "Summarise this in one sentence.", "Say this in plain words for a child of ten.", "Turn this into a note of four lines for a colleague.",
    "Correct the style of this text and list what you changed.", "List all persons, places, numbers and dates as JSON.",
    "What is the tone of this text? Quote the words that carry it.", "Give this a headline and a line below it.",
    "Write five questions that this text answers, with the answers.", "Cut this to a third without losing a fact.",
    "Explain the main point with a comparison from another field.", "Write a short dialogue between two people who disagree about this.",
    "What is missing, doubtful or contradictory here?", "Write an abstract in the manner of a scientific paper.",
    "Traduci in italiano.", "Tradúcelo al español.", "翻译成中文。",
)
PAIR_TASKS = (
    "Which of the two texts is better written, and why?", "What do both texts have in common? Quote one line of each.",
    "Write the second text in the manner of the first.", "Put one fact of the first text and one of the second into a single sentence that is true.",
)
PHRASES = (
    "Where is the nearest pharmacy?", "The train is twenty minutes late.", "I would like to pay by card.", "It has rained since Tuesday.",
    "Please keep the receipt.", "We have two children and a dog.", "The lift is out of order.", "She learned to swim at forty.",
    "Turn left behind the church.", "How long does it take by bus?", "The meeting was moved to Friday.", "Nobody answered the telephone.",
    "Il pane è ancora caldo.", "Ho dimenticato le chiavi in ufficio.", "¿A qué hora cierra el museo?", "Je cherche un livre pour ma sœur.",
    "Das Fenster lässt sich nicht öffnen.", "明天会下雪吗？", "駅はどこですか。", "Можно войти?", "أين أقرب محطة؟", "지금 몇 시예요?",
)
LANGUAGES = ("Italian", "Spanish", "French", "German", "Portuguese", "Chinese", "Japanese", "Korean", "Russian", "Arabic", "English")
GENERAL = (
    "Why is the sky dark at night?", "What is the difference between weather and climate?", "Name three uses of salt beside cooking.",
    "How do I get wax out of a tablecloth?", "Who decides how long a second is?", "Plan a day in a small town with two children.",
    "What should I ask before renting a flat?", "Why do bicycles stay upright?", "Explain compound interest with one example.",
    "Qual è la differenza tra miele e sciroppo?", "Come si legge una carta topografica?", "Perché il mare è salato?",
    "Scrivi un biglietto di auguri per un collega che va in pensione.", "Is it worth repairing a toaster?", "What makes a good password?",
    "How does a lighthouse lens work?", "What would happen if the Moon were twice as far away?", "Quanto dura un anno su Marte?",
)
PROGRAMS = (
    "{lang}: a function that returns the words of a text that occur most often, ties in alphabetical order.",
    "{lang}: read lines from standard input and print them sorted by length, longest first.",
    "{lang}: a bounded queue for several threads, with a way to close it.", "{lang}: parse a date like 2026-11-30 and reject wrong ones.",
    "{lang}: merge two sorted lists without copying them first.", "{lang}: count the lines of all files below a folder, by extension.",
    "{lang}: a retry helper with growing pauses and a limit.", "{lang}: what is wrong with `for (size_t i = n - 1; i >= 0; --i)` and its likes?",
)
PROGRAM_LANGUAGES = ("C++20", "Python", "Rust", "Go", "JavaScript", "bash", "SQL", "C")
ALGORITHMS = (
    "Explain {what}, with its cost in time and memory.", "Write {what} in pseudocode and run it by hand on a small example.",
    "When is {what} the wrong choice?", "Prove that {what} is right.",
)
ALGORITHM_NAMES = (
    "binary search", "heap sort", "union-find with path compression", "Dijkstra's shortest paths", "the sieve of Eratosthenes",
    "Knuth-Morris-Pratt matching", "reservoir sampling", "a bloom filter", "longest common subsequence", "topological sorting",
    "the fast Fourier transform", "quickselect", "a treap", "the A* search", "Huffman coding",
)


def _turns(*contents):
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]


def language(seed, _files):
    pairs = [(name, task) for name in PASSAGES for task in range(len(TASKS))]
    for name, task in Chance(seed, "language").shuffled(pairs):
        yield {"source": f"{name}-{task}", "messages": _turns(f"{TASKS[task]}\n\n{PASSAGES[name]}")}
    names = list(PASSAGES)
    pairs = [(a, b, task) for a in names for b in names if a < b for task in range(len(PAIR_TASKS))]
    for a, b, task in Chance(seed, "pairs").shuffled(pairs):
        yield {"source": f"{a}-{b}-{task}",
               "messages": _turns(f"1.\n{PASSAGES[a]}\n\n2.\n{PASSAGES[b]}\n\n{PAIR_TASKS[task]}")}


def translation(seed, _files):
    pairs = [(phrase, to) for phrase in range(len(PHRASES)) for to in LANGUAGES]
    for phrase, to in Chance(seed, "translation").shuffled(pairs):
        yield {"source": f"{phrase}-{to}", "messages": _turns(f'Translate into {to}, and give a literal version too: "{PHRASES[phrase]}"')}


def general(seed, _files):
    for i, question in enumerate(Chance(seed, "general").shuffled(GENERAL)):
        yield {"source": str(i), "messages": _turns(question)}


def programming(seed, _files):
    pairs = [(task, lang) for task in PROGRAMS for lang in PROGRAM_LANGUAGES]
    for i, (task, lang) in enumerate(Chance(seed, "programming").shuffled(pairs)):
        yield {"source": str(i), "messages": _turns(task.format(lang=lang))}


def algorithms(seed, _files):
    pairs = [(form, what) for form in ALGORITHMS for what in ALGORITHM_NAMES]
    for i, (form, what) in enumerate(Chance(seed, "algorithms").shuffled(pairs)):
        yield {"source": str(i), "messages": _turns(form.format(what=what))}


def _question(item):
    text = item["question"]
    for letter, choice in zip("ABCDEFGHIJ", item.get("choices") or []):
        text += f"\n{letter}) {choice}"
    return text


def _sum(chance):
    """A problem made from numbers."""
    a, b, c = chance.between(12, 980), chance.between(3, 60), chance.between(2, 9)
    return chance.pick((
        f"A shop sells {a} jars in {b} days. How many is that in {c} weeks, if every day is like the others?",
        f"What is {a} × {b} − {c}³? Show the steps.",
        f"A tank of {a} litres loses {c} per cent of its content each hour. How much is left after {b} hours?",
        f"In how many ways can {c} of {c + b % 7 + 1} people stand in a row?",
        f"The line through (0, {c}) and ({b}, {a}): where does it meet the x axis?",
        f"Find all whole numbers n between 1 and {a} for which n² + n is divisible by {b}. How many are there?",
    ))


def reasoning(seed, _files):
    with open(os.path.join(ROOT, "apps", "eval", "suites", "core.jsonl"), encoding="utf-8") as file:
        items = [json.loads(line) for line in file if line.strip()]
    chance = Chance(seed, "eval_reasoning")
    for item in chance.shuffled(items):
        yield {"source": item["id"], "messages": _turns(_question(item))}
    for i in range(2000):
        yield {"source": f"sum-{i}", "messages": _turns(_sum(chance))}
