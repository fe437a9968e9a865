"""What the campaign does not have: a chat, tool calls to review, forms, an unknown payment, a run
that failed, schedules, reflections and a stuck outbox."""

from __future__ import annotations

import asyncio
import operator
from datetime import timedelta
from typing import Annotated, Any, Literal, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.store.memory import InMemoryStore
from langgraph.types import interrupt
from pydantic import BaseModel, Field

import perdure
from perdure.langmem import ReflectionExecutor
from perdure.types import Message, Retry
from tests.support.polling import until

ONCE = Retry(attempts=1)


class Chat(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]


class Work(TypedDict, total=False):
    order: str
    amount: float
    customer: str
    day: str
    log: Annotated[list[str], operator.add]


# -- support: a chat, and two tool calls that a person reviews

ASKED = (
    "My order A-1042 arrived broken. Can I have my money back, and a note that I return the lamp?"
)
SEEN = (
    "I am sorry about the lamp. Order **A-1042** was delivered on Tuesday and costs 89.00 €. "
    "I can refund it and send you a return label:\n\n"
    "1. Pack the lamp.\n2. Print the label.\n3. Hand it to any post office."
)
ORDER = '{"id": "A-1042", "item": "Desk lamp Luna", "price": 89.0, "delivered": "2026-10-20"}'


def look_up(state: Chat) -> Chat:
    call = {"name": "find_order", "args": {"order": "A-1042"}, "id": "call-1"}
    return {
        "messages": [
            AIMessage("", tool_calls=[call], id="ask-order"),
            ToolMessage(ORDER, tool_call_id="call-1", name="find_order", id="order"),
            AIMessage(SEEN, id="seen"),
        ]
    }


def review_tools(state: Chat) -> Chat:
    refund = {"order": "A-1042", "amount": 89.0, "currency": "EUR", "to": "card ending in 4711"}
    label = {"order": "A-1042", "carrier": "DHL", "email": "mia@example.com"}
    why = "The customer reports a broken lamp. Our rules allow a refund within 14 days."
    answer = interrupt(
        {
            "action_requests": [
                {"name": "refund_payment", "args": refund, "description": why},
                {
                    "name": "send_return_label",
                    "args": label,
                    "description": "So the lamp comes back.",
                },
            ],
            "review_configs": [
                {"action_name": name, "allowed_decisions": ["approve", "edit", "reject"]}
                for name in ("refund_payment", "send_return_label")
            ],
        }
    )
    said = ", ".join(one["type"] for one in answer["decisions"])
    return {"messages": [AIMessage(f"Done: {said}.", id="done")]}


# -- invoices: a form, a payment whose outcome is unknown, a run that failed


class Release(BaseModel):
    """How an invoice is paid."""

    pay: Literal["in full", "in part", "not at all"] = Field(title="Pay")
    amount: float = Field(title="Amount in €", ge=0)
    account: Literal["main", "projects"] = Field("main", title="From the account")
    urgent: bool = Field(False, title="Pay today")
    note: str = Field("", title="Note for the books")


def ask_release(state: Work) -> Work:
    invoice = {"invoice": state["order"], "supplier": state["customer"], "total": state["amount"]}
    answer = perdure.ask(
        {**invoice, "due": "2026-10-30"},
        response_schema=Release.model_json_schema(),
        expires=timedelta(hours=9),
    )
    return {"log": [str(answer)]}


@perdure.effect(unknown="hold", retry=ONCE)
def transfer(order: str, amount: float, to: str) -> str:
    raise TimeoutError("the bank did not answer within 30 s")


def pay(state: Work) -> Work:
    return {"log": [transfer(state["order"], state["amount"], state["customer"])]}


def post_to_books(state: Work) -> Work:
    accounts = {"4400": "revenue"}
    return {"log": [accounts["4980"]]}


def plain_question(state: Work) -> Work:
    return {"log": [str(interrupt(f"Which warehouse ships {state['order']}?"))]}


def wait_for_parcel(state: Work) -> Work:
    return {"log": [str(perdure.wait_for("parcel scanned", timeout=timedelta(days=12)))]}


def wait_for_scan(state: Work) -> Work:
    """The same after a deploy that renamed the node."""
    return wait_for_parcel(state)


def notify(state: Work) -> Work:
    perdure.outbox("erp", {"order": state["order"], "state": "shipped"})
    return {"log": ["told"]}


def _line(*nodes: Any, schema: Any = Work) -> Any:
    graph: Any = StateGraph(schema)
    graph.add_sequence(list(nodes))
    graph.add_edge(START, nodes[0].__name__)
    return graph


def register(rt: perdure.Runtime) -> None:
    """Every graph of these agents."""
    rt.register(_line(look_up, review_tools, schema=Chat), name="support")
    for name, node in (
        ("invoices", ask_release),
        ("payments", pay),
        ("bookkeeping", post_to_books),
        ("warehouse", plain_question),
        ("parcels", wait_for_parcel),
    ):
        rt.register(_line(node), name=name, retry=ONCE)
    rt.register(_line(notify), name="erp sync")
    rt.register(_line(wait_for_scan), name="returns")
    rt.deliver("erp", _refuse)


def _refuse(message: Message) -> None:
    raise ConnectionError("erp.example refused the connection")


async def live(rt: perdure.Runtime) -> None:
    """Start all of it, and bring it to where it rests."""
    await asyncio.to_thread(reflect, rt)
    hello = {"messages": [HumanMessage(ASKED, id="asked")]}
    labels = {"customer": "Mia Berg", "channel": "chat"}
    await rt.start("support", hello, thread_id="support-mia-berg", metadata=labels)
    for order, amount, customer in (
        ("INV-2291", 1840.5, "Nordlicht Druck GmbH"),
        ("INV-2296", 312.0, "Paper & Sons"),
    ):
        given = {"order": order, "amount": amount, "customer": customer}
        await rt.start("invoices", given, thread_id=f"invoice-{order}", tags=["finance"])
    paid = {"order": "INV-2288", "amount": 960.0, "customer": "Kessel Logistik"}
    await rt.start("payments", paid, thread_id="payment-INV-2288", tags=["finance"])
    await rt.start("bookkeeping", {"order": "INV-2280"}, thread_id="books-INV-2280")
    await rt.start("warehouse", {"order": "A-1050"}, thread_id="order-A-1050")
    await rt.start("parcels", {"order": "A-1047"}, thread_id="parcel-A-1047")
    await rt.start("erp sync", {"order": "A-1044"}, thread_id="erp-A-1044")
    await drive(rt)
    zone: Any = {"timezone": "Europe/Berlin", "input": {"order": "all"}}
    await rt.schedule("weekly stock count", "warehouse", cron="0 7 * * 1", **zone)
    there: Any = {"timezone": "America/New_York", "input": {"order": "all"}}
    await rt.schedule("nightly books", "bookkeeping", cron="30 18 * * *", **there)
    await talk(rt)


async def talk(rt: perdure.Runtime) -> None:
    """What people say about questions, and who takes them."""
    waits = {one.thread_id: one for one in await rt.waits(kind="human", limit=100)}
    refund, invoice = waits["support-mia-berg"], waits["invoice-INV-2291"]
    await rt.assign(invoice.id, "tom@example.com", by="tom@example.com")
    said = "The photo shows a broken socket. Fine with me."
    await rt.comment(refund.run_id, said, wait_id=refund.id, by="tom@example.com")


def reflect(rt: perdure.Runtime) -> None:
    """Memory work: one piece failed, two are not due."""

    def remember(payload: Any) -> None:
        raise ValueError("the model returned no JSON")

    options: Any = {"store": InMemoryStore(), "journal": rt, "name": "customers", "retry": ONCE}
    with ReflectionExecutor(remember, ("customers", "{user_id}"), **options) as executor:
        for name, hours in (("mia-berg", 0), ("noor-aziz", 1), ("sami-laine", 5)):
            said = {"messages": [HumanMessage(f"I am {name}, and like short answers.", id=name)]}
            config: Any = {"configurable": {"user_id": name, "thread_id": f"support-{name}"}}
            executor.submit(said, config, after_seconds=hours * 3600)
        until(lambda: any(one.error for one in executor.pending()), "a failed reflection")


async def before_the_deploy(rt: perdure.Runtime) -> None:
    """Runs that sleep at a node which the graphs of `register` no longer have."""
    rt.register(_line(wait_for_parcel), name="returns", retry=ONCE)
    for order in ("A-1031", "A-1036", "A-1039"):
        await rt.start("returns", {"order": order}, thread_id=f"return-{order}")
    await drive(rt)


async def drive(rt: perdure.Runtime) -> None:
    while (await rt.tick(limit=100)).claimed:
        pass
