//! Config files: any text parses without a panic, every problem has a valid position, every server has an origin, and
//! parsing is deterministic.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use toolcrib::Config;

fuzz_target!(|text: &str| {
    for file in ["/home/ada/config.toml", "/home/ada/mcp.json"] {
        let config = Config::parse(Path::new(file), text);
        let lines = text.lines().count() + 1;
        for position in config.problems.iter().filter_map(|problem| problem.position) {
            assert!(position.line >= 1 && position.column >= 1, "{position:?}");
            assert!(position.line as usize <= lines, "{position:?} in {lines} lines");
        }
        for server in config.roster.servers() {
            assert!(config.origins.contains_key(&server.id), "{} has no origin", server.id);
        }
        assert_eq!(config, Config::parse(Path::new(file), text), "parsing is deterministic");
    }
});
