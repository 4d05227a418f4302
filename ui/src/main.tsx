import { render } from "preact";
import { Page } from "./shell/page.tsx";
import { start } from "./state.ts";

start();
render(<Page />, document.getElementById("page")!);
