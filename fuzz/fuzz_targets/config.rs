//! Config files: any text is read to its end, every problem has a place in the text, and nothing is invented.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use toolcrib::Config;

fuzz_target!(|text: &str| {
    for file in ["/home/ada/config.toml", "/home/ada/mcp.json"] {
        let config = Config::parse(Path::new(file), text);
        let lines = text.lines().count() + 1;
        for at in config.problems.iter().filter_map(|problem| problem.at) {
            assert!(at.line >= 1 && at.column >= 1 && at.line as usize <= lines, "{at:?} in {lines} lines");
        }
        for server in config.roster.servers() {
            assert!(config.origins.contains_key(&server.id), "{} is declared nowhere", server.id);
        }
        assert_eq!(config, Config::parse(Path::new(file), text), "twice the same");
    }
});
