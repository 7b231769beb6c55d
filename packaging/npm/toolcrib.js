#!/usr/bin/env node
// Runs the program of the package for this platform, which npm installs as an optional dependency.
"use strict";

const { spawn } = require("node:child_process");

const name = `@toolcrib/${process.platform}-${process.arch}`;

function findProgram() {
  if (process.env.TOOLCRIB_BINARY) {
    return process.env.TOOLCRIB_BINARY;
  }
  try {
    return require.resolve(`${name}/bin/toolcrib`);
  } catch {
    console.error(
      `toolcrib: there is no program for this platform (${name}).\n` +
        "If npm was run with --no-optional, install again without it. Otherwise: cargo install toolcrib-cli",
    );
    process.exit(1);
  }
}

const child = spawn(findProgram(), process.argv.slice(2), { stdio: "inherit" });
const signals = ["SIGINT", "SIGTERM", "SIGHUP"];
// The program decides how it ends; a terminal sends Ctrl-C to both.
for (const signal of signals) {
  process.on(signal, () => child.kill(signal));
}
child.on("error", (error) => {
  console.error(`toolcrib: cannot start ${child.spawnfile}: ${error.message}`);
  process.exit(1);
});
child.on("exit", (code, signal) => {
  if (signal === null) {
    process.exit(code);
  }
  for (const name of signals) {
    process.removeAllListeners(name);
  }
  process.kill(process.pid, signal);
});
