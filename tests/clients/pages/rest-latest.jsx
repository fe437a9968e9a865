// The hook of the SDK, latest: it speaks the REST API.
import { useStream } from "langgraph-sdk-latest/react";
import { show } from "./chat.jsx";

show((apiUrl, threadId, onThreadId) => {
  const options = { apiUrl, apiKey: null, assistantId: "chat", threadId, onThreadId };
  const stream = useStream({ ...options, reconnectOnMount: true });
  return { stream, answer: (resume) => stream.submit(undefined, { command: { resume } }) };
});
