"""Agents that a stored journal has in mid-life: one for each way a run can wait or be cut off.

The journals in `tests/fixtures` hold runs of these graphs. Change neither a graph nor the name of
an effect or a type here: the stored runs were begun with them.
"""

from __future__ import annotations

import enum
import operator
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, TypedDict

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.language_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.outputs import ChatResult
from langchain_core.tools import tool
from langgraph.config import get_config, get_store
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Send, interrupt
from pydantic import BaseModel

import perdure
from perdure.errors import EffectTimeout
from perdure.langchain import Durable


class World:
    """What is outside of the process: who was called, with which key, and what is down."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.keys: dict[str, str] = {}
        """The key of the last call of each name."""
        self.orders: dict[str, str] = {}
        """What the far side knows of orders, by item."""
        self.broken: set[str] = set()
        self.executor: Any = None
        """Who accepts reflections."""
        self.before: Callable[[str], None] = lambda name: None

    def reach(self, name: str, told: object = "", *, keyed: bool = False) -> None:
        self.calls.append(f"{name} {told}".strip())
        if keyed:
            self.keys[name] = perdure.key()
        self.before(name)
        if name in self.broken:
            raise ConnectionError(f"{name} is down")


WORLD = World()


class Log(TypedDict, total=False):
    """The state of most agents here."""

    log: Annotated[list[str], operator.add]


def line(*nodes: Callable[..., Any], schema: Any = Log) -> StateGraph[Any]:
    """A graph of nodes in a row, each named after its function."""
    builder: StateGraph[Any] = StateGraph(schema)
    builder.add_sequence(list(nodes))
    builder.add_edge(START, nodes[0].__name__)
    return builder


# -- waits


@perdure.effect
def send(to: str) -> str:
    WORLD.reach("send", to)
    return f"mail to {to}"


def think(state: Log) -> Log:
    perdure.label(stage="thought", draft=1)
    return {"log": ["thought"]}


def nap(state: Log) -> Log:
    begun = perdure.now()
    mail = send("ann")
    perdure.sleep(timedelta(days=3))
    return {"log": [mail, begun.isoformat()]}


def approve(state: Log) -> Log:
    ticket = str(perdure.uuid())
    answer = perdure.ask({"ticket": ticket, "draft": "Hello"})
    return {"log": [ticket, answer]}


class Decision(BaseModel):
    """What a person is asked for."""

    verdict: Literal["send", "drop"]
    comment: str = ""


def review(state: Log) -> Log:
    decision = perdure.ask(
        {"draft": "Hello Bo"},
        response_schema=Decision,
        expires=timedelta(days=20),
        default=Decision(verdict="drop", comment="too late"),
    )
    return {"log": [f"{decision.verdict} {decision.comment}".strip()]}


def where(state: Log) -> Log:
    return {"log": [interrupt("Which city?")]}


def listen(state: Log) -> Log:
    first = perdure.wait_for("first")
    second = perdure.wait_for("second", timeout=timedelta(days=20), default="nothing")
    return {"log": [f"first {first}, second {second}"]}


def draft(state: Log) -> Log:
    return {"log": [perdure.ask("Send it?", unless="reply", default="taken back")]}


def turn(state: Log) -> Log:
    return {"log": [perdure.wait_for("go")]}


def nested() -> StateGraph[Any]:
    """A subgraph that sleeps."""

    def pack(state: Log) -> Log:
        return {"log": [send("bo")]}

    def rest(state: Log) -> Log:
        perdure.sleep(timedelta(days=2))
        return {"log": ["rested"]}

    def arrive(state: Log) -> Log:
        return {"log": ["arrived"]}

    builder = StateGraph(Log)
    inner: Any = line(pack, rest).compile()
    builder.add_node("journey", inner)
    builder.add_node("arrive", arrive)
    builder.add_edge(START, "journey")
    builder.add_edge("journey", "arrive")
    return builder


class One(TypedDict):
    to: str


def fan() -> StateGraph[Any]:
    """Three branches, of which two ask a person."""

    def split(state: Log) -> list[Send]:
        return [Send("branch", {"to": to}) for to in ("cy", "di", "ed")]

    def branch(state: One) -> Log:
        if state["to"] == "cy":
            return {"log": [send("cy")]}
        return {"log": [perdure.ask({"about": state["to"]})]}

    def gather(state: Log) -> Log:
        return {"log": [f"{len(state['log'])} came back"]}

    builder = StateGraph(Log)
    builder.add_node("branch", branch)
    builder.add_node("gather", gather)
    builder.add_conditional_edges(START, split, ["branch"])
    builder.add_edge("branch", "gather")
    return builder


@task
def weigh(grams: int) -> int:
    WORLD.reach("weigh", grams)
    return grams * 2


@entrypoint()
def parcel(grams: int) -> str:
    total = weigh(grams).result()
    perdure.sleep(timedelta(days=1))
    return f"{total} g"


# -- values of one's own types


class Color(enum.Enum):
    RED = "red"


@dataclass
class Order:
    number: int
    placed: datetime
    color: Color


class Address(BaseModel):
    street: str
    tags: tuple[str, ...] = ()


class Shipment(TypedDict, total=False):
    order: Order
    address: Address
    log: Annotated[list[str], operator.add]


def take_order(state: Shipment) -> Shipment:
    order = Order(7, perdure.now(), Color.RED)
    return {"order": order, "address": Address(street="High Street", tags=("new", "far"))}


def ship(state: Shipment) -> Shipment:
    perdure.sleep(timedelta(days=1))
    order, address = state["order"], state["address"]
    return {"log": [f"{order.number} {order.color.name} {address.street} {address.tags}"]}


# -- effects


@perdure.effect
def reserve(table: int) -> str:
    WORLD.reach("reserve", table)
    return f"table {table}"


@perdure.effect
def settle_bill(amount: int) -> str:
    WORLD.reach("settle_bill", amount, keyed=True)
    return f"paid {amount}"


def dine(state: Log) -> Log:
    return {"log": [reserve(4), settle_bill(30)]}


def find_order(item: str) -> str | None:
    WORLD.reach("find_order", item)
    return WORLD.orders.get(item)


@perdure.effect(verify=find_order)
def place_order(item: str) -> str:
    WORLD.reach("place_order", item)
    return f"one {item}"


def shop(state: Log) -> Log:
    return {"log": [place_order("lamp")]}


@perdure.effect(unknown="hold")
def charge(amount: int) -> str:
    WORLD.reach("charge", amount)
    return f"receipt for {amount}"


class Amount(Log, total=False):
    amount: int


def bill(state: Amount) -> Amount:
    try:
        return {"log": [charge(state["amount"])]}
    except perdure.errors.EffectFailed as error:
        return {"log": [f"not charged: {error}"]}


@perdure.effect(retry=perdure.Retry(attempts=5, first=timedelta(minutes=10)))
def fetch(page: str) -> str:
    WORLD.reach("fetch", page)
    return f"read {page}"


def read_page(state: Log) -> Log:
    return {"log": [fetch("news")]}


class Refused(Exception):
    """What the far side of an effect raises."""


@perdure.effect(retry=None)
def knock(door: int) -> str:
    WORLD.reach("knock", door)
    raise Refused("nobody is in", door)


@perdure.effect(retry=None, timeout=0.05)
def dawdle() -> None:
    WORLD.reach("dawdle")
    time.sleep(0.2)


def visit(state: Log) -> Log:
    log = []
    try:
        knock(3)
    except Refused as error:
        log.append(f"refused {error.args}")
    try:
        dawdle()
    except EffectTimeout:
        log.append("too slow")
    return {"log": [*log, perdure.ask("What now?")]}


def refund(result: str, item: str) -> None:
    WORLD.reach("refund", f"{item}, {result}")


@perdure.effect(compensate=refund)
def buy(item: str) -> str:
    WORLD.reach("buy", item)
    return f"receipt of {item}"


def purchase(state: Log) -> Log:
    return {"log": [buy("chair"), buy("desk"), perdure.ask("Send it?")]}


@perdure.effect(key=lambda contact, step: (contact, step))
def write_once(contact: str, step: int) -> str:
    WORLD.reach("write_once", f"{contact} {step}")
    return f"letter {step} to {contact}"


def campaign(state: Log) -> Log:
    return {"log": [write_once("fay", 1)]}


class Seat(Log, total=False):
    seat: str


@perdure.effect(transactional=True)
def book(seat: str) -> str:
    WORLD.reach("book", seat)
    database = perdure.transaction()
    database.execute("CREATE TABLE IF NOT EXISTS seats (seat TEXT PRIMARY KEY)")
    database.execute(f"INSERT INTO seats VALUES ('{seat}')")
    perdure.outbox("booked", {"seat": seat})
    return seat


def booking(state: Seat) -> Seat:
    seat = book(state["seat"])
    perdure.outbox("told", {"seat": seat})
    return {"log": [seat]}


def fragile(state: Log) -> Log:
    if "fragile" in WORLD.broken:
        raise ValueError("it broke")
    return {"log": ["mended"]}


class Report(TypedDict, total=False):
    text: str


LARGE = "A long report. " * 1200


def report(state: Report) -> Report:
    return {"text": LARGE}


def wake(state: Log) -> Log:
    return {"log": ["woken"]}


# -- an agent of LangChain


class Scripted(FakeMessagesListChatModel):
    """A model whose n-th answer in a conversation is the n-th of its responses."""

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    def _generate(self, messages: Any, *args: Any, **options: Any) -> ChatResult:
        self.i = sum(message.type == "ai" for message in messages)
        WORLD.reach("model", self.i)
        return super()._generate(messages, *args, **options)


@tool
def pay_invoice(invoice: str) -> str:
    """Pay an invoice."""
    WORLD.reach("pay_invoice", invoice)
    return f"{invoice} is paid"


def bookkeeper() -> Any:
    order: Any = {"name": "pay_invoice", "args": {"invoice": "A-17"}, "id": "call-1"}
    asks = AIMessage("", tool_calls=[order], id="asks")
    model = Scripted(responses=[asks, AIMessage("All paid.", id="says")])
    return create_agent(model, [pay_invoice], middleware=[Durable(tools={"pay_invoice": "hold"})])


class Careful(AgentMiddleware[Any, Any, Any]):
    """Asks a person when the model has answered."""

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        response = await handler(request)
        perdure.ask("May it say that?")
        return response


def speaker() -> Any:
    model = Scripted(responses=[AIMessage("Well said.", id="says")])
    return create_agent(model, middleware=[Careful(), Durable()])


# -- with only the saver


class Chat(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    turns: int


def reply(state: Chat) -> Chat:
    n = len(state["messages"])
    said = state["messages"][-1].text
    return {"messages": [AIMessage(f"You said: {said}", id=f"ai-{n}")], "turns": n}


def chat() -> StateGraph[Any]:
    return line(reply, schema=Chat)


def sign(state: Log) -> Log:
    mail = send("gus")
    return {"log": [mail, interrupt("Sign it?")]}


def letter() -> StateGraph[Any]:
    return line(sign)


# -- reflections


def reflect(payload: Any) -> str:
    """Write what was said into the store."""
    key = payload["key"]
    WORLD.reach("reflect", key)
    user = get_config()["configurable"]["user"]
    said = payload["messages"][-1].text
    get_store().put(("notes", user), key, {"said": said})
    return f"kept {key}"


NAMESPACE = ("notes", "{user}")


def talk(key: str) -> dict[str, Any]:
    """What is reflected on."""
    return {"key": key, "messages": [HumanMessage(f"Remember {key}.", id=key)]}


def who(user: str, thread: str) -> Any:
    """Of which conversation."""
    return {"configurable": {"user": user, "thread_id": thread}}


def remember(state: Log) -> Log:
    WORLD.executor.submit(talk("told"), who("ed", "t"), thread_id=None, after_seconds=86_400)
    return {"log": [perdure.ask("Anything else?")]}


def register(rt: perdure.Runtime) -> dict[str, Any]:
    """Every graph, and each bound to the journal by its name."""
    once = perdure.Retry(attempts=1)
    graphs: dict[str, Any] = {
        "nap": line(think, nap),
        "approve": line(approve),
        "review": line(review),
        "trip": line(where),
        "listen": line(listen),
        "draft": line(draft),
        "turn": line(turn),
        "nested": nested(),
        "fan": fan(),
        "parcel": parcel,
        "shipment": line(take_order, ship, schema=Shipment),
        "dinner": line(dine),
        "shop": line(shop),
        "bill": line(bill, schema=Amount),
        "page": line(read_page),
        "visit": line(visit),
        "purchase": line(purchase),
        "campaign": line(campaign),
        "booking": line(booking, schema=Seat),
        "fragile": line(fragile),
        "report": line(report, schema=Report),
        "wake": line(wake),
        "bookkeeper": bookkeeper(),
        "speaker": speaker(),
        "remember": line(remember),
    }
    return {name: rt.register(graph, name, retry=once) for name, graph in graphs.items()}
