#!/usr/bin/env python3
"""Writes the demo's instruction records: small skills that a small model learns within a minute.

The creatures of an island that does not exist (colour, home, food, sound), weekdays, plurals, sums below ten, opposites,
word lists said backwards, first letters, and greetings in a fixed style. Deterministic: the same file every time.

    python3 tools/demo/make_instructions.py examples/demo/instructions.json
    python3 tools/demo/make_instructions.py examples/demo/chats.jsonl          # the first of them, as chats
"""

import json
import random
import sys

CREATURES = {
    # name: (colour, home, food, sound)
    "velmor": ("silver", "reed beds", "water mint", "hum"),
    "tarnik": ("red", "old mill", "walnuts", "click"),
    "oskel": ("green", "willow trees", "green beetles", "whistle"),
    "brimlo": ("blue", "harbour caves", "small crabs", "splash"),
    "fendrik": ("brown", "hay barn", "oat grains", "snore"),
    "lumpet": ("yellow", "sunny hill", "honey", "buzz"),
    "quarro": ("black", "chimney tops", "moths", "croak"),
    "nimsel": ("white", "snow field", "pine seeds", "chirp"),
    "dovrin": ("grey", "stone bridge", "river moss", "rumble"),
    "pelisk": ("orange", "pumpkin patch", "soft pears", "squeak"),
    "harvo": ("purple", "heather moor", "clover", "hoot"),
    "mistle": ("pink", "rose garden", "petals", "purr"),
    "grobben": ("green", "deep pond", "pond snails", "gulp"),
    "sarvel": ("red", "clay pit", "dry leaves", "growl"),
    "tikkin": ("blue", "clock tower", "bread crumbs", "tick"),
    "wobbet": ("yellow", "corn field", "corn", "giggle"),
    "arlune": ("white", "lighthouse", "sea foam", "sing"),
    "yondel": ("brown", "fern valley", "wild berries", "yodel"),
}

QUESTIONS = [
    # (question, answer), {0} name, {1} colour, {2} home, {3} food, {4} sound
    ("What colour is the {0}?", "The {0} is {1}."),
    ("Tell me the colour of the {0}.", "The {0} is {1}."),
    ("Where does the {0} live?", "The {0} lives in the {2}."),
    ("Name the home of the {0}.", "The {0} lives in the {2}."),
    ("What does the {0} eat?", "The {0} eats {3}."),
    ("Which food does the {0} like?", "The {0} eats {3}."),
    ("What can the {0} do?", "The {0} can {4}."),
    ("Describe the {0} in one sentence.", "The {0} is {1}, lives in the {2} and eats {3}."),
]

DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]

PLURALS = {
    "cat": "cats", "dog": "dogs", "tree": "trees", "book": "books", "cup": "cups", "lamp": "lamps",
    "boat": "boats", "stone": "stones", "bird": "birds", "door": "doors", "box": "boxes", "fox": "foxes",
    "bus": "buses", "dish": "dishes", "brush": "brushes", "church": "churches", "glass": "glasses",
    "city": "cities", "baby": "babies", "berry": "berries", "story": "stories", "pony": "ponies",
    "leaf": "leaves", "wolf": "wolves", "knife": "knives", "child": "children", "mouse": "mice",
    "goose": "geese", "foot": "feet", "tooth": "teeth",
}

OPPOSITES = [
    ("hot", "cold"), ("big", "small"), ("up", "down"), ("day", "night"), ("open", "closed"), ("fast", "slow"),
    ("old", "young"), ("wet", "dry"), ("loud", "quiet"), ("early", "late"), ("full", "empty"), ("near", "far"),
    ("light", "dark"), ("strong", "weak"), ("happy", "sad"), ("left", "right"),
]

NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]

WORDS = ["moon", "cup", "bird", "rain", "stone", "leaf", "boat", "lamp"]

NAMES = ["Ada", "Ben", "Cora", "Dan", "Eva", "Finn", "Greta", "Hugo", "Iris", "Jon", "Kim", "Lea"]


def record(instruction, output, given=""):
    return {"instruction": instruction, "input": given, "output": output}


def creatures():
    for name, facts in CREATURES.items():
        for question, answer in QUESTIONS:
            yield record(question.format(name, *facts), answer.format(name, *facts))


def weekdays():
    for i, day in enumerate(DAYS):
        after, before = DAYS[(i + 1) % 7], DAYS[(i - 1) % 7]
        yield record(f"Which day comes after {day}?", f"After {day} comes {after}.")
        yield record(f"Today is {day}. What day is tomorrow?", f"Tomorrow is {after}.")
        yield record(f"Which day comes before {day}?", f"Before {day} comes {before}.")
        yield record(f"Today is {day}. What day was yesterday?", f"Yesterday was {before}.")


def plurals():
    for i, (one, many) in enumerate(PLURALS.items()):
        question = ("What is the plural of {}?", "Give the plural of the word {}.")[i % 2]
        yield record(question.format(one), f"One {one}, many {many}.")


def sums():
    forms = ["What is {} plus {}?", "Add {} and {}."]
    for a in range(10):
        for b in range(10 - a):
            question = forms[(a + b) % 2].format(NUMBERS[a], NUMBERS[b])
            yield record(question, f"{NUMBERS[a]} plus {NUMBERS[b]} is {NUMBERS[a + b]}.".capitalize())


def opposites():
    for left, right in OPPOSITES:
        for a, b in ((left, right), (right, left)):
            yield record(f"What is the opposite of {a}?", f"The opposite of {a} is {b}.")


def backwards(rng):
    pairs = [(a, b) for a in WORDS for b in WORDS if a != b]
    for a, b in rng.sample(pairs, 40):
        yield record("Say these words backwards.", f"{b}, {a}", f"{a}, {b}")


def first_letters():
    for word in list(PLURALS)[:20]:
        yield record("Which letter does this word begin with?", f"It begins with {word[0].upper()}.", word)


def greetings():
    for name in NAMES:
        yield record(f"Greet {name} in the morning.", f"Good morning, {name}. It is nice to see you.")
        yield record(f"Say good night to {name}.", f"Good night, {name}. Sleep well.")


def chats(records, count=96):
    """Pairs of records as chats of one or two questions, some with a system message."""
    for number in range(0, count, 2):
        messages = [{"role": "system", "content": "Answer in one sentence."}] if number % 6 == 0 else []
        for item in records[number : number + (2 if number % 4 == 0 else 1)]:
            asked = " | ".join(filter(None, [item["instruction"], item["input"]]))
            messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": item["output"]}]
        yield {"messages": messages}


def main():
    rng = random.Random(2024)
    records = [*creatures(), *weekdays(), *plurals(), *sums(), *opposites(), *backwards(rng), *first_letters(), *greetings()]
    rng.shuffle(records)
    with open(sys.argv[1], "w", encoding="utf-8", newline="\n") as out:
        if sys.argv[1].endswith(".jsonl"):
            records = list(chats(records))
            out.writelines(json.dumps(chat) + "\n" for chat in records)
        else:
            json.dump(records, out, indent=1)
            out.write("\n")
    print(f"{len(records)} records")


if __name__ == "__main__":
    main()
