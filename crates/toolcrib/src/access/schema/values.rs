//! JSON values as schemas compare and describe them: `1` and `1.0` are equal.

use serde_json::{Number, Value};

use super::keywords::BudgetExceeded;

/// Bytes of text that count as one step.
pub(super) const BYTES_PER_STEP: usize = 256;

/// Compares two values and charges the cost to `steps`.
pub(super) fn json_equal(left: &Value, right: &Value, steps: &mut u32) -> Result<bool, BudgetExceeded> {
    let length = if let (Value::String(left), Value::String(_)) = (left, right) { left.len() } else { 0 };
    let cost = u32::try_from(1 + length / BYTES_PER_STEP).map_err(|_| BudgetExceeded)?;
    *steps = steps.checked_sub(cost).ok_or(BudgetExceeded)?;
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => Ok(left == right || left.as_f64() == right.as_f64()),
        (Value::Array(left), Value::Array(right)) => {
            let mut equal = left.len() == right.len();
            for (left, right) in left.iter().zip(right) {
                equal = equal && json_equal(left, right, steps)?;
            }
            Ok(equal)
        }
        (Value::Object(left), Value::Object(right)) => {
            let mut equal = left.len() == right.len();
            for (key, value) in left {
                equal = equal
                    && match right.get(key) {
                        Some(other) => json_equal(value, other, steps)?,
                        None => false,
                    };
            }
            Ok(equal)
        }
        (left, right) => Ok(left == right),
    }
}

/// Returns whether a number is an integer in any spelling.
pub(super) fn is_integer(number: &Number) -> bool {
    !number.is_f64() || number.as_f64().is_some_and(|number| number.fract() == 0.0)
}

/// Describes the type of a value for messages.
pub(super) fn describe_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// Describes a schema's `type` for messages.
pub(super) fn describe_type(name: &str) -> &str {
    match name {
        "boolean" => "`true` or `false`",
        "integer" => "an integer",
        "number" => "a number",
        "string" => "a string",
        "array" => "an array",
        "object" => "an object",
        other => other,
    }
}

/// Formats a value for messages, cut to 60 characters.
pub(super) fn abbreviate(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("`{}…`", &text[..end]),
        None => format!("`{text}`"),
    }
}
