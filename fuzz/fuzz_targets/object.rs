//! Objects: the parser accepts the same JSON as `serde_json`, and every value is written back unchanged.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use serde_json::value::RawValue;
use toolcrib::protocol::json::object::{Object, as_integer, as_string};

fuzz_target!(|data: &[u8]| {
    let source = Bytes::copy_from_slice(data);
    let reference = serde_json::from_slice::<&RawValue>(data);
    match Object::parse(&source) {
        Ok(object) => {
            let raw = reference.expect("a parsed object is JSON");
            assert!(raw.get().starts_with('{'));
            for (key, value) in object.iter() {
                let member = serde_json::from_slice::<&RawValue>(value).expect("a member is JSON");
                assert_eq!(member.get().as_bytes(), &**value, "the value of {key} has no surrounding whitespace");
                let _ = as_string(value);
                let _ = as_integer(value);
            }
            let written = object.to_bytes();
            let reparsed = Object::parse(&written).expect("a written object can be parsed");
            assert!(reparsed == object);
        }
        Err(bad) if bad.is_json => {}
        Err(_) => assert!(
            reference.is_err(),
            "serde_json accepts this, we do not: {:?}",
            String::from_utf8_lossy(data)
        ),
    }
});
