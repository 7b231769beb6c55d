//! Values of JSON as schemas see them: `1` and `1.0` are the same number.

use serde_json::{Number, Value};

use super::keywords::TooLong;

/// Characters that are compared in one step.
pub(super) const WIDTH: usize = 256;

/// Whether two values are the same; takes `steps`.
pub(super) fn same(one: &Value, other: &Value, steps: &mut u32) -> Result<bool, TooLong> {
    let length = if let (Value::String(one), Value::String(_)) = (one, other) { one.len() } else { 0 };
    let cost = u32::try_from(1 + length / WIDTH).map_err(|_| TooLong)?;
    *steps = steps.checked_sub(cost).ok_or(TooLong)?;
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => Ok(one == other || one.as_f64() == other.as_f64()),
        (Value::Array(one), Value::Array(other)) => {
            let mut same_so_far = one.len() == other.len();
            for (one, other) in one.iter().zip(other) {
                same_so_far = same_so_far && same(one, other, steps)?;
            }
            Ok(same_so_far)
        }
        (Value::Object(one), Value::Object(other)) => {
            let mut same_so_far = one.len() == other.len();
            for (key, value) in one {
                same_so_far = same_so_far
                    && match other.get(key) {
                        Some(other) => same(value, other, steps)?,
                        None => false,
                    };
            }
            Ok(same_so_far)
        }
        (one, other) => Ok(one == other),
    }
}

/// Whether a number is whole, however it is written.
pub(super) fn is_whole(number: &Number) -> bool {
    !number.is_f64() || number.as_f64().is_some_and(|number| number.fract() == 0.0)
}

/// What kind of value it is, for people.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// A type of a schema, for people.
pub(super) fn named(kind: &str) -> &str {
    match kind {
        "boolean" => "`true` or `false`",
        "integer" => "a whole number",
        "number" => "a number",
        "string" => "a string",
        "array" => "an array",
        "object" => "an object",
        other => other,
    }
}

/// A value for people, which may be long.
pub(super) fn brief(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("`{}…`", &text[..end]),
        None => format!("`{text}`"),
    }
}
