//! Objects: what is JSON is judged as `serde_json` judges it, and every value is written as the bytes it was.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use serde_json::value::RawValue;
use toolcrib::wire::object::{Object, as_integer, as_string};

fuzz_target!(|data: &[u8]| {
    let source = Bytes::copy_from_slice(data);
    let other = serde_json::from_slice::<&RawValue>(data);
    match Object::parse(&source) {
        Ok(object) => {
            let raw = other.expect("what we read is JSON");
            assert!(raw.get().starts_with('{'));
            for (key, value) in object.iter() {
                let same = serde_json::from_slice::<&RawValue>(value).expect("a member is JSON");
                assert_eq!(same.get().as_bytes(), &**value, "the value of {key} has no blanks around it");
                let _ = (as_string(value), as_integer(value));
            }
            let written = object.to_bytes();
            let again = Object::parse(&written).expect("what we write can be read");
            assert!(again == object);
        }
        Err(bad) if bad.is_json => {}
        Err(_) => assert!(
            other.is_err(),
            "serde_json takes what we call no JSON: {:?}",
            String::from_utf8_lossy(data)
        ),
    }
});
