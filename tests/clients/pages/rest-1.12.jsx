// The hook of the SDK, 1.12: it speaks the REST API.
import { useStream } from "langgraph-sdk-1.12/react";
import { show } from "./chat.jsx";

show((apiUrl, threadId, onThreadId) => {
  const options = { apiUrl, apiKey: null, assistantId: "chat", threadId, onThreadId };
  const stream = useStream({ ...options, reconnectOnMount: true });
  return { stream, answer: (resume) => stream.submit(undefined, { command: { resume } }) };
});
