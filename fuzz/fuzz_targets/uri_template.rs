//! URI templates: matching never panics, and a template without expressions matches only itself.

#![no_main]

use libfuzzer_sys::fuzz_target;
use toolcrib::catalog::uri_template::UriTemplate;

fuzz_target!(|input: (&str, &str)| {
    let (template, uri) = input;
    let Some(parsed) = UriTemplate::parse(template) else { return };
    let is_match = parsed.matches(uri);
    if !template.contains('{') && is_match {
        assert_eq!(template, uri);
    }
});
