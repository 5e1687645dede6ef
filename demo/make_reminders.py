"""How reminders.jsonl was made: `python -m demo.make_reminders > demo/reminders.jsonl`. The same seed, the same file."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from typing import Any

SEED = 2108
COUNT = 3_400
FIRST = (
    "Ada Amir Anouk Bastian Beatriz Bo Chiara Chidi Dana Darius Eero Elif Emeka Esra Farah Felix Freya Gita Hana Hugo "
    "Ines Ivo Jana Joao Kaito Keiko Lars Leila Luca Mara Mateo Mei Nadia Niko Noor Olga Omar Paula Priya Quentin Rafa "
    "Rosa Sami Sofia Tariq Tess Uma Viktor Wanda Yara Yusuf Zoe"
).split()
LAST = (
    "Abebe Alvarez Bauer Bianchi Castro Chen Costa Diaz Eriksen Fischer Garcia Haddad Ito Jansen Kaya Kovacs Larsen "
    "Lopez Moreau Nakamura Novak Okafor Olsen Petrov Qureshi Rossi Sato Silva Tanaka Ueda Vega Weber Yilmaz Zhang"
).split()
CHORES = (
    "Water the {plant}",
    "Call {name} back about the {thing}",
    "Take the {food} out of the oven",
    "Pick up {name} from {place}",
    "Pay the {bill} bill",
    "Move the car, the meter at {place} runs out",
    "Your table for {few} at {place} is ready",
    "Your ride to {place} leaves in {few} minutes",
    "The dentist expects you at {hour}",
    "Send {name} the {thing}",
    "The {thing} that you lent {name} is due back",
    "Order #{number} is out for delivery",
    "Order #{number}: payment still open, second notice",
    "Cart with {few} items is about to expire",
    "Retry webhook {number}, attempt {few}",
    "Trial of account {number} ends today",
    "Rotate the key of service {service}",
    "Renew the certificate of {service}",
    "Close the poll about the {thing}",
    "Happy birthday, {name}!",
    "Stand-up with {name} in {few} minutes",
    "Take the pills, with water this time",
    "Stretch. You have been sitting since {hour}",
    "Turn the {food} over",
    "Back up the photos of {place}",
)
WORDS = {
    "plant": "ferns;basil;cactus (a little);tomatoes;orchid;lemon tree;monstera".split(";"),
    "thing": "lease;invoice;ladder;budget;roof;holiday;contract;drill;slides;bicycle;piano".split(";"),
    "food": "bread;lasagne;pizza;pie;salmon;cookies;tofu;pancakes;pão de queijo".split(";"),
    "place": "the station;Harbour Street;the airport;Café Luna;gate 14;the library;school;Malmö C;the pool".split(";"),
    "bill": "water;phone;electricity;internet;gym".split(";"),
    "service": "billing;search;mail;checkout;avatars;maps".split(";"),
}


def delay(rng: random.Random) -> str | int:
    """1 to 20 seconds, most of them short, written as people do."""
    ms = min(20_000, 1_000 + round(rng.expovariate(1 / 5_000)))
    form = rng.random()
    if form < 0.15:
        return ms
    if form < 0.35:
        return f"{ms}ms"
    if form < 0.6:
        return f"{round(ms / 1000)}s"
    return f"{ms / 1000:.1f}s"


def reminders() -> Iterator[dict[str, Any]]:
    """All of them, in the order of the file."""
    rng = random.Random(SEED)
    customers = [f"{first} {rng.choice(LAST)}" for first in FIRST for _ in range(3)]
    for number in range(1, COUNT + 1):
        words = {name: rng.choice(choices) for name, choices in WORDS.items()}
        text = rng.choice(CHORES).format(
            name=rng.choice(FIRST),
            few=rng.randint(2, 9),
            hour=f"{rng.randint(8, 18)}:{rng.choice(('00', '15', '30', '45'))}",
            number=rng.randint(10_000, 99_999),
            **words,
        )
        yield {"id": f"r-{number:04}", "customer": rng.choice(customers), "text": text, "in": delay(rng)}


def main() -> None:
    for reminder in reminders():
        sys.stdout.write(json.dumps(reminder, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
