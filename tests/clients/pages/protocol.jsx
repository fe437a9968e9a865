// The hook of @langchain/react: it speaks the v2 protocol of commands and events.
import { useStream } from "@langchain/react";
import { show } from "./chat.jsx";

show((apiUrl, threadId, onThreadId) => {
  const options = { apiUrl, apiKey: null, assistantId: "chat", threadId, onThreadId };
  const stream = useStream(options);
  return { stream, answer: (response) => stream.respond(response) };
});
