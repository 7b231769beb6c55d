//! Tests of `toolcrib demo`.

use super::*;

#[test]
fn demo_succeeds_and_leaves_nothing() {
    let home = Home::new("");
    let result = home.run(&["demo"]).expect(0);
    assert_eq!(result.stdout.matches('✓').count(), 9, "{}", result.stdout);
    assert_eq!(result.stdout.matches('✗').count(), 0, "{}", result.stdout);
    assert_eq!(result.stderr, "");
    assert!(!home.0.file("run").exists(), "the demo uses its own folder");
}

#[test]
fn demo_prints_json() {
    let home = Home::new("");
    let report = home.run(&["demo", "--json"]).expect(0).json();
    assert_eq!(report["ok"], true);
    assert!(report["took"].as_f64().unwrap() < 5.0, "{report}");
    assert!(
        report["steps"].as_array().unwrap().iter().all(|step| step["ok"] == true && step["took"].is_f64())
    );
    let quiet = home.run(&["demo", "-q"]).expect(0);
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("", ""));
}
