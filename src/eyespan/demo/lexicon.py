"""The closed lexicon of the demo's pictures: every word that a picture can show.

One closed list keeps reading learnable for a 10 M model: nearly every word is one token, so reading
a word is predicting one token. All words are plain ASCII and short enough for a 24 x 12 character
page.
"""

from typing import Final


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


GOODS: Final = _words(
    "Mug Soap Rice Milk Eggs Bread Honey Butter Cheese Apples Pears Grapes Lemons Onions Garlic "
    "Carrots Beans Pasta Flour Sugar Salt Pepper Coffee Tea Cocoa Juice Water Lamp Candle Matches "
    "Pencil Stapler Paper Glue Scarf Gloves Socks Shirt Hat Belt Brush Comb Towel Sponge Bucket "
    "Broom Hammer Nails Rope Paint Tape Plates Spoons Forks Knife Kettle Teapot Basket Cushion "
    "Blanket Clock Radio Camera Ball"
)
SHOP_NAMES: Final = _words(
    "Old New Red Green Blue Golden Silver Happy Sunny Corner Garden River Harbor Village Royal "
    "Little Grand Lucky Quiet Family Station Bridge Castle Forest"
)
SHOP_TYPES: Final = _words(
    "Cafe Market Bakery Store Books Foods Kiosk Deli Tools Flowers Dairy Pantry Bazaar Supply "
    "Goods Corner"
)
MONTHS: Final = _words("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec")
PLACES: Final = _words(
    "Lima Oslo Rome Paris Cairo Tokyo Delhi Seoul Quito Accra Dakar Tunis Hanoi Perth Miami "
    "Dallas Boston Austin Berlin Vienna Prague Warsaw Madrid Lisbon Dublin London Athens Sofia "
    "Riga Minsk Kyiv Baku Doha Dubai Muscat Tehran Kabul Dhaka Manila Bern Bonn Lyon Nice Milan "
    "Turin Genoa Basel Ghent Turku Malmo Bergen Nairobi Lagos Harare Lusaka Havana Bogota Salta "
    "Natal Suva"
)
PERSONS: Final = _words(
    "Anna Ben Clara David Emma Felix Grace Hugo Irene Jonas Karin Leo Maria Nils Olga Paul Rosa "
    "Simon Tina Ulrich Vera Walter Xenia Yusuf Zoe Amir Bella Carlos Diana Elias Fatima George "
    "Hanna Ivan Julia Kenji Laura Marco Nadia Oscar Petra Quinn Ravi Sara Thomas Uma Victor Wendy "
    "Adam Ruth Dora Henry Ines Jack Kofi Lena Mila Noah Otto Priya"
)
TOPICS: Final = _words(
    "Rain Snow Sales Visits Goals Miles Books Trees Cars Bikes Boats Hours Points Wins Cost Score "
    "Age Stock Votes Calls Mails Steps Pages Trips Rooms Shops Birds Fish"
)
NOUNS: Final = _words(
    "baker farmer sailor doctor teacher painter singer driver hunter miner king queen child "
    "brother sister mother father friend guest pilot tailor waiter judge poet dancer horse rabbit "
    "tiger lion wolf bear goat sheep duck goose hen cat dog mouse frog snake turtle whale shark "
    "crab spider bee beetle parrot pigeon raven falcon camel monkey pony puppy kitten house tower "
    "castle bridge garden forest river mountain valley island harbor village market school church "
    "museum library station kitchen cellar window door roof wall gate fence table chair bench "
    "lamp mirror carpet pillow bottle basket bucket ladder hammer needle button jacket ring crown "
    "sword shield drum flute violin guitar piano letter book map paper pencil candle lantern "
    "wagon boat ship train bicycle wheel engine rocket bell clock stone flower rose leaf branch "
    "seed cloud star moon"
)
ADJECTIVES: Final = _words(
    "old young small big tall short long wide narrow heavy light fast slow loud quiet happy sad "
    "angry brave shy clever silly gentle proud hungry tired busy lazy clean dirty dry wet warm "
    "cold hot cool soft hard smooth rough round flat sharp bright dark pale green blue red yellow "
    "golden silver wooden broken hidden lost famous strange secret simple sweet bitter fresh"
)
VERBS: Final = _words(
    "carries paints finds loses sells buys builds breaks cleans follows watches hears sees likes "
    "loves fears helps calls meets visits leaves opens closes moves pushes pulls lifts drops "
    "holds throws catches hides shows draws counts measures repairs steals brings sends keeps "
    "guards chases feeds teaches thanks greets answers wakes warns paints praises covers fills "
    "washes burns cuts"
)
ADVERBS: Final = _words(
    "often never always slowly quickly quietly gladly rarely soon still again calmly"
)
PREPOSITIONS: Final = _words("near behind under above beside before after without beyond inside")
DETERMINERS: Final = _words("the my our her his this that each every one")
COLORS: Final = _words("red orange yellow green blue purple pink black")
SHAPES: Final = _words("circle square triangle diamond ring cross bar frame")
SIZES: Final = _words("small large")
PLACE_NAMES: Final = (
    "top left", "top", "top right", "left", "center", "right",
    "bottom left", "bottom", "bottom right",
)  # fmt: skip

LISTS: Final[tuple[tuple[str, ...], ...]] = (
    GOODS, SHOP_NAMES, SHOP_TYPES, MONTHS, PLACES, PERSONS, TOPICS, NOUNS, ADJECTIVES, VERBS,
    ADVERBS, PREPOSITIONS,
    DETERMINERS, tuple(word.capitalize() for word in DETERMINERS), COLORS, SHAPES, SIZES,
    ("top", "bottom", "left", "right", "center"), ("Total", "Cash", "Card", "City", "Name", "Item"),
)  # fmt: skip


def all_words() -> tuple[str, ...]:
    """Every word a picture can show, once each, in a fixed order."""
    return tuple(dict.fromkeys(word for words in LISTS for word in words))
