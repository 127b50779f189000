"""Calibration text for the bundled model, in the language that it speaks: sums, facts to remember, short questions, work
on words, small stories, and tools."""
import json

from chance import Chance

SYSTEMS = ("", "", "", "You are a helpful assistant", "Be succinct.", "Be verbose.", "Answer the questions of the user.",
           "You are a succinct assistant.", "Rispondi in modo breve.")
NAMES = ("Anna", "Bruno", "Carla", "David", "Elena", "Felix", "Greta", "Hugo", "Irene", "Jack", "Karen", "Luca", "Maria", "Noah",
         "Omar", "Paula", "Rita", "Simon", "Tom", "Vera", "Wanda", "Yuri")
CITIES = ("Rome", "Oslo", "Lima", "Cairo", "Paris", "Tokyo", "Delhi", "Milan", "Dakar", "Berlin", "Madrid", "Lagos", "Vienna",
          "Athens", "Havana", "Warsaw", "Lisbon", "Geneva")
ADJECTIVES = ("red", "old", "narrow", "silent", "copper", "hidden", "northern", "broken", "golden", "tiny", "square", "painted",
              "wooden", "royal", "dusty", "eastern")
PLACES = ("tower", "bridge", "cabin", "garden", "tunnel", "castle", "station", "mill", "vault", "harbor", "room", "chest", "wagon", "door")
THINGS = ("ring", "coin", "lamp", "basket", "nail", "spoon", "mirror", "bell", "cup", "button", "paint", "box")
FILLERS = ("The road to the valley was closed.", "Rain fell on the hills for an hour.", "Two birds sat on the roof and sang.",
           "A train passed by without stopping.", "The soup was still warm.", "The lights of the village went out.",
           "Somebody had painted the fence green.", "The market opens at seven.", "A dog slept in the shade.")
WORDS = ("apple", "rope", "coat", "sand", "ladder", "hammer", "shell", "thread", "orange", "scarf", "grape", "fork", "candle",
         "river", "paper", "stone", "basket", "window", "mountain", "bread")
CAPITALS = {"Japan": "Tokyo", "Italy": "Rome", "France": "Paris", "Spain": "Madrid", "Peru": "Lima", "Egypt": "Cairo", "Norway": "Oslo",
            "Germany": "Berlin", "Austria": "Vienna", "Greece": "Athens", "Cuba": "Havana", "Poland": "Warsaw", "Portugal": "Lisbon",
            "Canada": "Ottawa", "Kenya": "Nairobi", "Sweden": "Stockholm"}
ELEMENTS = {"hydrogen": ("H", 1), "helium": ("He", 2), "carbon": ("C", 6), "nitrogen": ("N", 7), "oxygen": ("O", 8), "sodium": ("Na", 11),
            "iron": ("Fe", 26), "copper": ("Cu", 29), "silver": ("Ag", 47), "gold": ("Au", 79)}
OPPOSITES = {"early": "late", "hot": "cold", "loud": "quiet", "first": "last", "full": "empty", "fast": "slow", "young": "old",
             "high": "low", "open": "closed", "light": "heavy"}
GREETINGS = (("Hi", "Hi! How can I help you?"), ("Thank you!", "You are welcome!"), ("Good morning", "Good morning! How can I help you?"),
             ("Grazie mille", "Prego! È un piacere."), ("What can you do?", "I can answer simple questions, do small sums and use tools."))
TRANSLATIONS = (("house", "Italian", "casa"), ("sun", "Spanish", "sol"), ("water", "German", "Wasser"), ("book", "French", "livre"),
                ("bread", "Italian", "pane"), ("dog", "German", "Hund"), ("moon", "Spanish", "luna"), ("thank you", "Italian", "grazie"))


def _sum(c):
    a, b = c.between(1, 999), c.between(1, 999)
    kind = c.below(3)
    sign, value = ("+", a + b) if kind == 0 else ("-", a - b) if kind == 1 else ("*", (a % 30 + 2) * (b % 30 + 2))
    if kind == 2:
        a, b = a % 30 + 2, b % 30 + 2
    question = c.pick((f"What is {a} {sign} {b}?", f"Calculate {a} {sign} {b}.", f"{a} {sign} {b} = ?", f"How much is {a} {sign} {b}?"))
    return question, f"{a} {sign} {b} = {value}", f"{a} {sign} {b}: the result is {value}."


def _story_sum(c):
    name, a, b = c.pick(NAMES), c.between(10, 99), c.between(3, 60)
    return (f"{name} has {a} apples and buys {b} more. How many apples does {name} have now?", f"{name} has {a + b} apples now.",
            f"{a} + {b} = {a + b}.")


def _compare(c):
    a, b = c.between(1, 999), c.between(1, 999)
    return f"Which is larger, {a} or {b}?", f"{max(a, b)} is larger.", f"I compare {a} and {b}."


def _capital(c):
    country = c.pick(list(CAPITALS))
    city = CAPITALS[country]
    return c.pick((f"What is the capital of {country}?", f"Tell me the capital of {country}.", f"Capital of {country}?")), \
        f"The capital of {country} is {city}.", f"The capital of {country} is {city}."


def _element(c):
    name = c.pick(list(ELEMENTS))
    symbol, number = ELEMENTS[name]
    if c.likely(0.5):
        return f"What is the symbol of {name}?", f"The symbol of {name} is {symbol}.", f"{name} is {symbol}."
    return f"What is the atomic number of {name}?", f"The atomic number of {name} is {number}.", f"{name} has number {number}."


def _opposite(c):
    word = c.pick(list(OPPOSITES))
    return f"What is the opposite of {word}?", f"The opposite of {word} is {OPPOSITES[word]}.", f"Opposite of {word}."


def _words(c):
    words = c.some(WORDS, c.between(3, 5))
    kind, text = c.below(4), " ".join(words)
    if kind == 0:
        return f"Sort these words alphabetically: {text}", " ".join(sorted(words)), "I sort by the first letters."
    if kind == 1:
        return f"Join these words with commas: {text}", ", ".join(words), "Commas between the words."
    if kind == 2:
        return f"Write in upper case: {text}", text.upper(), "Every letter becomes a capital."
    return (f"Make a numbered list of these words: {text}", "\n".join(f"{i + 1}. {w}" for i, w in enumerate(words)), "One line for each word.")


def _object(c):
    name, age, city = c.pick(NAMES), c.between(18, 80), c.pick(CITIES)
    return (f"Make a JSON object with name {name}, age {age} and city {city}.", json.dumps({"name": name, "age": age, "city": city}),
            "Three keys.")


def _translate(c):
    word, to, result = c.pick(TRANSLATIONS)
    return f'Translate "{word}" into {to}.', result, f"{word} in {to}."


def _greet(c):
    question, answer = c.pick(GREETINGS)
    return question, answer, "A greeting."


def _tale(c):
    name, thing, place = c.pick(NAMES), c.pick(THINGS), c.pick(PLACES)
    return "Write a short story.", (
        f"Once upon a time there was a young cat named {name} who lived beside a quiet river. On a cold day {name} found a "
        f"{c.pick(ADJECTIVES)} {thing} under a tree. A friendly fox asked to see it. After three days {name} came to a "
        f"{c.pick(ADJECTIVES)} {place}. And everyone in the land remembered the name of {name}."), "A story with a cat."


TURNS = (_sum, _sum, _sum, _story_sum, _compare, _capital, _capital, _element, _opposite, _words, _words, _object, _translate, _greet, _tale)


def _fact(c):
    kind = c.below(4)
    if kind == 0:
        place = f"{c.pick(ADJECTIVES)} {c.pick(PLACES)}"
        code = c.between(1000, 9999)
        return f"The code of the {place} is {code}.", f"What is the code of the {place}?"
    if kind == 1:
        name = c.pick(NAMES)
        return f"{name} lives in {c.pick(CITIES)}.", f"Where does {name} live?"
    if kind == 2:
        thing = f"{c.pick(ADJECTIVES)} {c.pick(THINGS)}"
        return f"The owner of the {thing} is {c.pick(NAMES)}.", f"Who is the owner of the {thing}?"
    return c.pick(FILLERS), None


def _answer(messages, c, question, answer, reasoning):
    messages.append({"role": "user", "content": question})
    messages.append({"role": "assistant", "content": answer, "reasoning": reasoning if c.likely(0.7) else ""})


def chat(seed, _files):
    c, count = Chance(seed, "nano-chat"), 0
    while True:
        count += 1
        system = c.pick(SYSTEMS)
        messages = [{"role": "system", "content": system}] if system else []
        for _ in range(c.between(2, 14)):
            _answer(messages, c, *c.pick(TURNS)(c))
        yield {"source": f"chat-{count}", "messages": messages}


def recall(seed, _files):
    c, count = Chance(seed, "nano-recall"), 0
    while True:
        count += 1
        facts, questions = [], {}
        for _ in range(c.between(12, 110)):
            fact, question = _fact(c)
            if question is not None and question in questions:
                continue
            facts.append(fact)
            if question is not None:
                questions[question] = fact
        separator = c.pick((" ", "\n"))
        head = c.pick(("Remember these facts.", "Here are some notes.", "Read this text."))
        asked = c.some(list(questions), 4)
        messages = []
        _answer(messages, c, head + separator + separator.join(facts) + f"\nQuestion: {asked[0]}", questions[asked[0]], "I look for it.")
        for question in asked[1:]:
            _answer(messages, c, question, questions[question], "It is in the text.")
        yield {"source": f"recall-{count}", "messages": messages}


def _tool(name, description, **parameters):
    properties = {key: {"type": kind, "description": text} for key, (kind, text) in parameters.items()}
    return json.dumps({"name": name, "description": description,
                       "parameters": {"type": "object", "properties": properties, "required": list(parameters)}})


TOOLS = {
    "write_file": _tool("write_file", "Write a text file.", path=("string", "Path of the file"), content=("string", "Text to write")),
    "read_file": _tool("read_file", "Read a text file.", path=("string", "Path of the file")),
    "add_task": _tool("add_task", "Add a task to the list.", task=("string", "Task"), priority=("string", "Priority")),
    "random_number": _tool("random_number", "Draw a random number.", min=("integer", "Lower limit"), max=("integer", "Upper limit")),
    "bash": _tool("bash", "Run a shell command.", command=("string", "Command")),
    "get_weather": _tool("get_weather", "Weather of a city.", city=("string", "City")),
    "play_music": _tool("play_music", "Play a song.", title=("string", "Title"), volume=("integer", "Volume 1-10")),
}


def _use(c, tool):
    """Question, arguments, result, answer."""
    file = f"{c.pick(('docs', 'notes', 'data'))}/{c.pick(WORDS)}.{c.pick(('txt', 'md', 'json'))}"
    if tool == "write_file":
        text = _fact(c)[0]
        return f'Save the text "{text}" in {file}.', {"path": file, "content": text}, "ok", f"I wrote the text to {file}."
    if tool == "read_file":
        text = _fact(c)[0]
        return f"What is in the file {file}?", {"path": file}, text, f"The file {file} says: {text}"
    if tool == "add_task":
        task, priority = f"{c.pick(('buy', 'clean', 'find'))} the {c.pick(WORDS)}", c.pick(("low", "medium", "high"))
        return f'New task: "{task}", priority {priority}.', {"task": task, "priority": priority}, "added", \
            f'I added "{task}" with {priority} priority.'
    if tool == "random_number":
        low, high = c.between(1, 90), c.between(100, 900)
        number = c.between(low, high)
        return f"Pick a random number from {low} to {high}.", {"min": low, "max": high}, str(number), f"The random number is {number}."
    if tool == "bash":
        command = c.pick(("ls", "pwd", "cat ", "wc -l ")) + (file if c.likely(0.5) else "")
        return f"Run the command `{command}`.", {"command": command}, "done", f"The command `{command}` printed: done"
    if tool == "get_weather":
        city, degrees = c.pick(CITIES), c.between(-5, 35)
        return f"What is the weather in {city}?", {"city": city}, f"{degrees} degrees, sunny", f"In {city} it is sunny with {degrees} degrees."
    title, volume = f"The {c.pick(ADJECTIVES)} {c.pick(THINGS)}", c.between(1, 10)
    return f'Play the song "{title}" at volume {volume}.', {"title": title, "volume": volume}, "playing", f'Playing "{title}" at volume {volume}.'


def tools(seed, _files):
    c, count = Chance(seed, "nano-tools"), 0
    while True:
        count += 1
        offered, messages = c.some(list(TOOLS), c.between(1, 4)), []
        system = c.pick(SYSTEMS)
        if system:
            messages.append({"role": "system", "content": system})
        for _ in range(c.between(1, 4)):
            if c.likely(0.25):
                _answer(messages, c, *c.pick(TURNS)(c))
                continue
            tool = c.pick(offered)
            question, arguments, result, answer = _use(c, tool)
            messages.append({"role": "user", "content": question})
            messages.append({"role": "assistant", "content": c.pick(("", "", "I will use a tool.")), "reasoning": f"I need {tool}.",
                             "calls": [(tool, arguments)]})
            messages.append({"role": "tool", "content": result})
            messages.append({"role": "assistant", "content": answer, "reasoning": ""})
        yield {"source": f"tools-{count}", "messages": messages, "schemas": [TOOLS[name] for name in offered]}
