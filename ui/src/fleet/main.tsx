import { render } from "preact";
import { advice, get } from "../api/fetch.ts";
import { mapOf, Page } from "./page.tsx";
import { now, start } from "./state.ts";

advice.unreachable = "Is `coroner fleet serve` still running, and can this machine reach it?";
start();
// Asked for at once; the page shares the answer, and tells of errors.
get(mapOf(now())).catch(() => undefined);
render(<Page />, document.getElementById("page")!);
