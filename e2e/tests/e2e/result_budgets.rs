//! Large results cost a client no more than the configured tokens, and every byte of them can be read.

use serde_json::{Value, json};
use test_support::client::{Era, HttpClient};
use test_support::gateway::{Home, server_config};

const CRIB: &str = env!("CARGO_BIN_EXE_crib");
const FAKE: &str = env!("CARGO_BIN_EXE_fake-server");
const TOKENS: usize = 2000;

fn block(result: &Value, index: usize) -> &str {
    result["content"][index]["text"].as_str().unwrap_or_else(|| panic!("{result}"))
}

fn read(client: &mut HttpClient, uri: &str) -> String {
    let answer = client.request("resources/read", &json!({"uri": uri})).message();
    answer["result"]["contents"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

#[test]
fn log_of_5_mb_costs_the_configured_tokens_and_is_read_back() {
    let limits = format!("[servers.fake.limits]\nresult-tokens = {TOKENS}\n");
    let home = Home::new(CRIB, &(server_config(FAKE, "fake", &[]) + &limits));
    let gateway = home.serve();
    let log: String =
        (0..100_000).map(|line| format!("{line:06} \"GET /é/{line}\" 200\t{:024}\n", line * 7)).collect();
    assert!(log.len() >= 5_000_000);
    for era in [Era::Session, Era::Stateless] {
        let mut client = HttpClient::new(gateway.address, "/mcp", era);
        assert!(client.tools().contains(&"read_result".to_owned()));
        let answer = client.request("tools/call", &json!({"name": "fake__echo", "arguments": {"text": log}}));
        let answer = answer.message();
        let shown = answer["result"]["content"].to_string().len();
        assert!(shown <= TOKENS * 4, "{shown} bytes");
        assert!(log.starts_with(block(&answer["result"], 0)));
        let uri = answer["result"]["content"][2]["uri"].as_str().unwrap().to_owned();
        assert_eq!(read(&mut client, &uri), log);
        assert!(
            read(&mut client, &format!("{uri}?search=get%20/%C3%A9/99999%22")).starts_with("100000: 099999")
        );

        let second = client.call("read_result", &json!({"uri": uri, "page": 2}))["result"].take();
        assert!(second["content"].to_string().len() <= TOKENS * 4);
        let beginning = block(&answer["result"], 0).to_owned() + block(&second, 0);
        assert!(log.starts_with(&beginning) && beginning.len() > TOKENS);
    }

    // The endpoint of one server and the command line pass whole results.
    let mut client = HttpClient::new(gateway.address, "/mcp/s/fake", Era::Session);
    assert!(!client.tools().contains(&"read_result".to_owned()));
    assert_eq!(client.text("echo", &json!({"text": log})), log);
    let text = "x".repeat(20_000);
    let output = home.run(&["call", "fake__echo", &format!("text={text}")]);
    assert!(String::from_utf8(output.stdout).unwrap().contains(&text));
}

#[test]
fn check_warns_about_a_list_above_the_budget() {
    let home = Home::new(CRIB, &server_config(FAKE, "fake", &[]));
    assert!(home.run(&["tools"]).status.success());
    let warned = |expose: &str| {
        home.write_config(&(server_config(FAKE, "fake", &[]) + expose));
        let output = home.run(&["check"]);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().contains("the list of all tools costs clients about")
    };
    assert!(!warned(""));
    assert!(warned("[expose]\nmode = \"all\"\nbudget = 100\n"));
    assert!(!warned("[expose]\nmode = \"auto\"\nbudget = 100\n"));
    assert!(!warned("[expose]\nmode = \"all\"\nbudget = 100\n[policy]\nallow = [\"fake.echo\"]\n"));
}
