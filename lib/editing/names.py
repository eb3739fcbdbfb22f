"""Invented titles of books and names of authors: plausible, distinct, the same on every machine."""

from itertools import chain, permutations, product

import torch

_ADJECTIVES = (
    "Amber Bitter Borrowed Bright Broken Burning Careful Copper Crooked Distant Drowned Empty "
    "Faithful Fallen Foreign Forgotten Frozen Gentle Gilded Hidden Hollow Honest Hungry Idle "
    "Inland Invisible Iron Last Late Lesser Liquid Lonely Lost Lucky Midnight Minor Narrow "
    "Northern Paper Patient Perfect Private Quiet Restless Salted Second Secret Silent Silver "
    "Simple Sleeping Southern Stolen Stubborn Sunken Tender Thirteenth Unmade Velvet Wandering"
)
_THINGS = (
    "Almanac Anchor Archive Atlas Avenue Balcony Bell Bridge Candle Canal Chapel Choir Clock "
    "Compass Corridor Dance Door Engine Estuary Feast Ferry Field Flame Forest Fountain Frontier "
    "Garden Gate Glacier Harbour Harvest Hotel Island Kingdom Ladder Lagoon Lantern Letter "
    "Library Lighthouse Map Marsh Meadow Mirror Monsoon Mountain Museum Needle Night Orchard "
    "Ordeal Palace Parade Pendulum Piano Portrait Promise Quarry Railway Rain Reef Refuge River "
    "Rope Season Shadow Shore Song Spring Staircase Station Storm Summer Table Theatre Thread "
    "Tide Tower Valley Voyage Wager Wall Wedding Well Window Winter"
)
_PLACES = (
    "Aldermere Anselo Ardennow Balquhar Belmora Brindal Calder Carrowmay Castellane Corvena "
    "Dunmarrow Elsinby Estremar Fallowdale Farleigh Galvara Glenharrow Halvern Hartsea Ilmarin "
    "Iverlund Kestrelby Lamorne Lindesay Lowmere Marivale Merrowick Montserra Nethercombe "
    "Norhaven Oakhanger Ostrava Palermine Penhallow Quintara Ravenholt Roscarrow Salvatierra "
    "Selwick Solmare Stavenger Tarrowby Thornsea Tolmarch Ulverness Valdorra Varnholm Vesterby "
    "Wexmoor Windemar Wolverstone Yarrowdale Zandvoor"
)
_PEOPLE = (
    "Actuary Apothecary Astronomer Baker Beekeeper Botanist Cartographer Clockmaker Collector "
    "Conductor Diver Gardener Glassblower Governess Judge Lamplighter Locksmith Magician Midwife "
    "Miller Navigator Organist Physician Pilgrim Printer Prisoner Sculptor Smuggler Stranger "
    "Surveyor Tailor Traveller Violinist Weaver Widow Witness"
)
_FORENAMES = (
    "Ada Agnes Albin Alma Amadou Anneke Anselm Arun Astrid Beatriz Bela Bruno Camille Cecil Clara "
    "Cosima Dario Delia Dmitri Edda Elias Emeka Esther Fabio Fatima Felix Freya Gaspar Greta Hana "
    "Hector Hugo Ibrahim Ines Ivo Jana Jasper Joaquim Judith Kaito Katya Klara Lars Leila Lionel "
    "Lucia Magnus Malik Mara Mateo Mina Nadia Niels Noor Odette Olga Oskar Petra Priya Rafael "
    "Renata Rosa Samir Selma Silas Sofia Stellan Tamsin Teodor Thea Tobias Ulla Vera Viktor Wanda "
    "Wilma Yara Yusuf Zelda Zora"
)
_FAMILY_STARTS = "Ash Bram Calla Dell Eber Fen Gar Hol Inger Kal Lind Mar Nor Over Pell Ren"
_FAMILY_ENDS = "berg brook court dale field ford hart low man mere more quist ridge sen wick worth"


def invented_titles(n: int, *, generator: torch.Generator) -> tuple[str, ...]:
    """n distinct titles, in random order, such as *The Beekeeper's Atlas*.

    Raises:
        ValueError: n is less than 1, or more than the word lists give.
    """
    things, people = _THINGS.split(), _PEOPLE.split()
    titles = chain(
        (f"The {a} {b}" for a, b in product(_ADJECTIVES.split(), things)),
        (f"The {a} of {b}" for a, b in product(things, _PLACES.split())),
        (f"The {a}'s {b}" for a, b in product(people, things)),
        (f"A {b} for the {a}" for a, b in product(people, things)),
        (f"The {a} and the {b}" for a, b in permutations(things, 2)),
    )
    return _chosen(list(titles), n, generator)


def invented_authors(n: int, *, generator: torch.Generator) -> tuple[str, ...]:
    """n distinct names, in random order, such as *Mara Lindbrook*.

    Raises:
        ValueError: n is less than 1, or more than the word lists give.
    """
    families = [a + b for a, b in product(_FAMILY_STARTS.split(), _FAMILY_ENDS.split())]
    authors = [f"{a} {b}" for a, b in product(_FORENAMES.split(), families)]
    return _chosen(authors, n, generator)


def _chosen(names: list[str], n: int, generator: torch.Generator) -> tuple[str, ...]:
    if not 1 <= n <= len(names):
        raise ValueError(f"n must be in 1..{len(names)}; got {n}")
    return tuple(names[i] for i in torch.randperm(len(names), generator=generator)[:n].tolist())
