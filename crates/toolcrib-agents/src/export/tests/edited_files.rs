//! Files that others edit between exports.

use super::*;

/// Returns the text of an agent's file with another member at its start and at its end.
fn edit_by_another(agent: &Agent, text: &str) -> String {
    match agent.language {
        FileLanguage::Json(_) => {
            let open = text.find('{').unwrap() + 1;
            let close = text.rfind('}').unwrap();
            let body = text[open..close].trim_end();
            let comma = if body.ends_with(',') { "" } else { "," };
            format!("{}\n  \"$first\": 1,{body}{comma}\n  \"$version\": 4\n{}", &text[..open], &text[close..])
        }
        FileLanguage::Toml => format!("first = 1\n{text}\n[tui]\nx = 1\n"),
        FileLanguage::Yaml => format!("FIRST: 1\n{text}\nLAST: 1\n"),
    }
}

#[test]
fn undo_of_changed_file_keeps_the_changes_and_all_other_bytes() {
    for agent in agents::all().filter(|agent| agent.layout == ServersLayout::ByName) {
        let home = Home::new();
        let (open, close) = match agent.language {
            FileLanguage::Json(_) => {
                let open: String =
                    agent.servers_path.iter().map(|key| format!("  \"{key}\": {{\n")).collect();
                (format!("{{\n  \"theme\": \"x\",\n{open}"), "  }\n".repeat(agent.servers_path.len()) + "}\n")
            }
            FileLanguage::Toml => (String::new(), String::new()),
            FileLanguage::Yaml => (format!("{}:\n", agent.servers_path[0]), "OTHER: 1 # kept\n".to_owned()),
        };
        let entry = match agent.language {
            FileLanguage::Json(_) => "    \"own\":   {\"type\": \"stdio\",  \"command\": \"x\"}\n".to_owned(),
            FileLanguage::Toml => {
                format!("# mine\n[{}.own]   # why\ncommand   = 'x'\n", agent.servers_path.join("."))
            }
            FileLanguage::Yaml => "  own:   # mine\n    type: stdio\n    name: own\n    cmd: x\n".to_owned(),
        };
        let before = format!("{open}{entry}{close}");
        let file = home.file(agent, AgentFileScope::User, &before);
        let gateway = gateway_of(agent);
        let keys: Vec<String> = agent.entry_path("own").into_iter().map(str::to_owned).collect();
        let Ok(mut plan) = home.plan(agent, AgentFileScope::User, &[ExportedServer::new(&gateway, None)])
        else {
            assert!(agent.rejects_file_on_bad_entry, "{}", agent.id);
            continue;
        };
        plan.remove_entries(agent, &[keys]).unwrap();
        plan.write().unwrap();
        let written = fs::read_to_string(&file).unwrap();
        fs::write(&file, edit_by_another(agent, &written)).unwrap();
        assert_eq!(home.undo(agent, AgentFileScope::User).unwrap(), UndoResult::EntriesRemoved);
        let undone = fs::read_to_string(&file).unwrap();
        assert_eq!(undone, edit_by_another(agent, &before), "{}", agent.id);
    }
}

#[test]
fn undo_in_a_file_that_its_agent_has_rewritten_keeps_its_form() {
    let before = "{\n  \"numStartups\": 1,\n  \"mcpServers\": {\n    \"own\": {\n      \"type\": \"stdio\",\n      \"command\": \"x\",\n      \"args\": [\n        \"-y\"\n      ]\n    }\n  }\n}";
    // As `JSON.stringify` writes it.
    let rewritten = "{\n  \"numStartups\": 2,\n  \"mcpServers\": {\n    \"toolcrib\": {\nTYPE      \"command\": \"toolcrib\",\n      \"args\": [\n        \"stdio\",\n        \"--agent\",\n        \"AGENT\"\n      ]\n    }\n  },\n  \"$version\": 4\n}";
    for (id, entry_type) in [("claude", "      \"type\": \"stdio\",\n"), ("qwen", ""), ("gemini", "")] {
        let home = Home::new();
        let agent = find_agent(id);
        let file = home.file(agent, AgentFileScope::User, before);
        let gateway = gateway_of(agent);
        let mut plan =
            home.plan(agent, AgentFileScope::User, &[ExportedServer::new(&gateway, None)]).unwrap();
        plan.remove_entries(agent, &[vec!["mcpServers".to_owned(), "own".to_owned()]]).unwrap();
        plan.write().unwrap();
        fs::write(&file, rewritten.replace("TYPE", entry_type).replace("AGENT", id)).unwrap();
        assert_eq!(home.undo(agent, AgentFileScope::User).unwrap(), UndoResult::EntriesRemoved);
        let expected = before.replace("\"numStartups\": 1", "\"numStartups\": 2");
        let expected = expected.replace("  }\n}", "  },\n  \"$version\": 4\n}");
        assert_eq!(fs::read_to_string(&file).unwrap(), expected, "{id}");
    }
}

#[test]
fn edits_of_the_own_entry_stay_over_ten_exports() {
    for agent in agents::all() {
        let home = Home::new();
        let gateway = gateway_of(agent);
        let write = || {
            let plan =
                home.plan(agent, AgentFileScope::User, &[ExportedServer::new(&gateway, None)]).unwrap();
            if plan.has_changes() {
                plan.write().unwrap();
            }
            fs::read_to_string(plan.file()).unwrap()
        };
        let written = write();
        let quote = if agent.language == FileLanguage::Yaml { "" } else { "\"" };
        let name = format!("{quote}{}{quote}", agent.id);
        let edited = written.replace(&name, &format!("{name}, \"--profile\", {quote}work{quote}"));
        assert_ne!(edited, written, "{}", agent.id);
        fs::write(agent.config_file(AgentFileScope::User, &home.paths).unwrap(), &edited).unwrap();
        for _ in 0..10 {
            assert_eq!(write(), edited, "{}", agent.id);
        }
        let command = CommandSpec::new("/new/toolcrib").arg("stdio").arg("--agent").arg(agent.id);
        let moved = ServerSpec::command("toolcrib".parse().unwrap(), command);
        let plan = home.plan(agent, AgentFileScope::User, &[ExportedServer::new(&moved, None)]).unwrap();
        assert!(plan.after().contains("/new/toolcrib") && plan.after().contains("work"), "{}", plan.after());
    }
}
