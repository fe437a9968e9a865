// A chat with one of the three `useStream` hooks. What it shows, a test reads; `window.seen` is
// every text that the newest answer had on the screen, in order.
import React, { useEffect, useState } from "react";
import { createRoot } from "react-dom/client";

const query = new URLSearchParams(location.search);
const api = query.get("api") ?? location.origin;
window.seen = [];

function useThread() {
  const [thread, setThread] = useState(query.get("thread"));
  return [
    thread,
    (id) => {
      query.set("thread", id);
      history.replaceState(null, "", `?${query}`);
      setThread(id);
    },
  ];
}

function textOf({ content }) {
  if (typeof content === "string") return content;
  return content.map((block) => block.text ?? "").join("");
}

function kindOf(message) {
  return message.type ?? message.getType();
}

function Chat({ useChat }) {
  const [thread, setThread] = useThread();
  const [draft, setDraft] = useState("");
  const { stream, answer } = useChat(api, thread, setThread);
  const messages = stream.messages.map((one) => [kindOf(one), textOf(one), one.id]);
  const last = messages.at(-1);
  // An interrupt without a value is a breakpoint, or a run that is still under way.
  const question = stream.interrupt?.value?.question;
  useEffect(() => {
    if (last?.[0] === "ai" && window.seen.at(-1) !== last[1]) window.seen.push(last[1]);
  });
  const send = (event) => {
    event.preventDefault();
    stream.submit({ messages: [{ type: "human", content: draft }] });
    setDraft("");
  };
  return (
    <main>
      <ol>
        {messages.map(([kind, text, id], n) => (
          <li key={id ?? n} className={kind}>
            {text}
          </li>
        ))}
      </ol>
      <p id="state">{stream.isLoading ? "busy" : "idle"}</p>
      {stream.error && <p id="error">{String(stream.error?.message ?? stream.error)}</p>}
      {question && (
        <p>
          <span id="question">{question}</span>
          <button id="yes" onClick={() => answer("yes")}>
            Yes
          </button>
        </p>
      )}
      <form onSubmit={send}>
        <input id="draft" value={draft} onChange={(event) => setDraft(event.target.value)} />
        <button id="send">Send</button>
        <button id="stop" type="button" onClick={() => stream.stop()}>
          Stop
        </button>
      </form>
    </main>
  );
}

export function show(useChat) {
  createRoot(document.getElementById("root")).render(<Chat useChat={useChat} />);
}
