//! The demo, as it is shown to people and to scripts.

use super::*;

#[test]
fn the_demo_holds_and_leaves_nothing() {
    let home = Home::new("");
    let ended = home.run(&["demo"]).expect(0);
    assert_eq!(ended.stdout.matches('✓').count(), 10, "{}", ended.stdout);
    assert_eq!(ended.stdout.matches('✗').count(), 0, "{}", ended.stdout);
    assert_eq!(ended.stderr, "");
    assert!(!home.0.file("run").exists(), "the demo keeps to its own folder");
}

#[test]
fn the_demo_can_be_read_by_scripts() {
    let home = Home::new("");
    let told = home.run(&["demo", "--json"]).expect(0).json();
    assert_eq!(told["ok"], true);
    assert!(told["took"].as_f64().unwrap() < 5.0, "{told}");
    assert!(told["steps"].as_array().unwrap().iter().all(|step| step["ok"] == true && step["took"].is_f64()));
    let quiet = home.run(&["demo", "-q"]).expect(0);
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("", ""));
}
