//! Evaluates a schema against a value, keyword by keyword, within a bounded number of steps.
//! The keywords of objects and arrays are in `containers.rs`.

use serde_json::{Map, Value};

use super::Violation;
use super::values::{BYTES_PER_STEP, abbreviate, describe_kind, describe_type, is_integer, json_equal};

/// Steps after which a check is abandoned.
const MAX_STEPS: u32 = 100_000;
/// The depth to which schemas may be nested or refer to each other.
const MAX_DEPTH: u32 = 100;
/// Violations that are kept.
const MAX_VIOLATIONS: usize = 20;
/// Values or types that one message lists.
const MAX_LISTED: usize = 8;

/// Keywords that restrict a value and are not supported here.
const UNSUPPORTED: [&str; 7] = [
    "pattern",
    "format",
    "patternProperties",
    "unevaluatedProperties",
    "unevaluatedItems",
    "$dynamicRef",
    "$recursiveRef",
];

/// The result of checking a value against a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SchemaVerdict {
    Valid,
    Invalid,
    /// The result depends on something that is not supported here.
    Unknown,
}

use SchemaVerdict::{Invalid, Unknown, Valid};

impl SchemaVerdict {
    /// Combines two verdicts that must both hold.
    pub(super) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Invalid, _) | (_, Invalid) => Invalid,
            (Unknown, _) | (_, Unknown) => Unknown,
            (Valid, Valid) => Valid,
        }
    }
}

/// The check took more than [`MAX_STEPS`] steps, or nested too deeply.
#[derive(Debug)]
pub(super) struct BudgetExceeded;

pub(super) type SchemaCheckResult = Result<SchemaVerdict, BudgetExceeded>;

/// One run of a schema over a value.
pub(super) struct SchemaCheck<'a> {
    root: &'a Value,
    ref_overrides_siblings: bool,
    /// Steps that are left.
    steps: u32,
    depth: u32,
    /// Path to the part of the value that is being checked.
    path: Vec<String>,
    /// Nesting of checks whose violations are not reported, such as the alternatives of `anyOf`.
    quiet: u32,
    pub(super) violations: Vec<Violation>,
}

impl<'a> SchemaCheck<'a> {
    pub(super) fn new(root: &'a Value, ref_overrides_siblings: bool) -> Self {
        Self {
            root,
            ref_overrides_siblings,
            steps: MAX_STEPS,
            depth: 0,
            path: Vec::new(),
            quiet: 0,
            violations: Vec::new(),
        }
    }

    /// Checks the whole value against the root schema.
    pub(super) fn run(&mut self, value: &Value) -> SchemaCheckResult {
        self.validate(self.root, value)
    }

    /// Spends one step.
    pub(super) fn spend_step(&mut self) -> Result<(), BudgetExceeded> {
        self.spend_steps(1)
    }

    /// Spends `count` steps.
    pub(super) fn spend_steps(&mut self, count: usize) -> Result<(), BudgetExceeded> {
        let count = u32::try_from(count).map_err(|_| BudgetExceeded)?;
        self.steps = self.steps.checked_sub(count).ok_or(BudgetExceeded)?;
        Ok(())
    }

    /// Compares two values.
    pub(super) fn are_equal(&mut self, left: &Value, right: &Value) -> Result<bool, BudgetExceeded> {
        json_equal(left, right, &mut self.steps)
    }

    /// Checks a value, or a part of it, against a schema.
    pub(super) fn validate(&mut self, schema: &'a Value, value: &Value) -> SchemaCheckResult {
        self.spend_step()?;
        let schema = match schema {
            Value::Object(schema) => schema,
            Value::Bool(false) => return Ok(self.fail(|| "is not allowed here")),
            _ => return Ok(Valid),
        };
        if self.depth == MAX_DEPTH {
            return Err(BudgetExceeded);
        }
        self.depth += 1;
        let verdict = self.check_keywords(schema, value);
        self.depth -= 1;
        verdict
    }

    fn check_keywords(&mut self, schema: &'a Map<String, Value>, value: &Value) -> SchemaCheckResult {
        let referenced = self.check_ref(schema, value)?;
        if self.ref_overrides_siblings && schema.contains_key("$ref") {
            return Ok(referenced);
        }
        let applies = |key: &str| match key {
            "pattern" | "format" => value.is_string(),
            "patternProperties" | "unevaluatedProperties" => value.is_object(),
            "unevaluatedItems" => value.is_array(),
            _ => true,
        };
        let has_unsupported = UNSUPPORTED.iter().any(|key| applies(key) && schema.contains_key(*key));
        let mut verdict = referenced.and(if has_unsupported { Unknown } else { Valid });
        verdict = verdict.and(self.check_type_and_values(schema, value)?);
        verdict = verdict.and(match value {
            Value::Object(members) => self.check_object(schema, members, value)?,
            Value::Array(elements) => self.check_array(schema, elements)?,
            Value::String(text) => self.check_string(schema, text)?,
            Value::Number(_) => self.check_number(schema, value),
            Value::Null | Value::Bool(_) => Valid,
        });
        Ok(verdict.and(self.check_combinators(schema, value)?))
    }

    /// Follows a `$ref` within the schema. References to other documents are not followed.
    fn check_ref(&mut self, schema: &'a Map<String, Value>, value: &Value) -> SchemaCheckResult {
        let Some(Value::String(target)) = schema.get("$ref") else { return Ok(Valid) };
        let pointer =
            target.strip_prefix('#').filter(|pointer| pointer.is_empty() || pointer.starts_with('/'));
        let root = self.root;
        match pointer.filter(|pointer| !pointer.contains('%')).and_then(|pointer| root.pointer(pointer)) {
            Some(schema) => self.validate(schema, value),
            None => Ok(Unknown),
        }
    }

    /// Checks `type`, `enum` and `const`.
    fn check_type_and_values(&mut self, schema: &'a Map<String, Value>, value: &Value) -> SchemaCheckResult {
        let matches_type = |name: &str| match name {
            "null" => value.is_null(),
            "boolean" => value.is_boolean(),
            "integer" => value.as_number().is_some_and(is_integer),
            "number" => value.is_number(),
            "string" => value.is_string(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            _ => true,
        };
        let kinds = match schema.get("type") {
            Some(Value::Array(kinds)) => kinds.as_slice(),
            Some(kind) => std::slice::from_ref(kind),
            None => &[],
        };
        self.spend_steps(kinds.len())?;
        let mut verdict = Valid;
        if !kinds.is_empty() && !kinds.iter().any(|kind| kind.as_str().is_none_or(matches_type)) {
            let expected: Vec<&str> =
                kinds.iter().take(MAX_LISTED).filter_map(Value::as_str).map(describe_type).collect();
            verdict =
                self.fail(|| format!("must be {}, not {}", expected.join(" or "), describe_kind(value)));
        }
        if let Some(Value::Array(allowed)) = schema.get("enum") {
            let mut is_allowed = false;
            for allowed in allowed {
                is_allowed |= self.are_equal(allowed, value)?;
            }
            if !is_allowed {
                verdict = self.fail(|| {
                    let names: Vec<String> = allowed.iter().take(MAX_LISTED).map(abbreviate).collect();
                    let more = if allowed.len() > MAX_LISTED { ", …" } else { "" };
                    format!("must be one of {}{more}", names.join(", "))
                });
            }
        }
        match schema.get("const") {
            Some(only) if !self.are_equal(only, value)? => {
                Ok(self.fail(|| format!("must be {}", abbreviate(only))))
            }
            _ => Ok(verdict),
        }
    }

    fn check_string(&mut self, schema: &Map<String, Value>, text: &str) -> SchemaCheckResult {
        const KEYS: [&str; 2] = ["minLength", "maxLength"];
        if !KEYS.iter().any(|key| schema.contains_key(*key)) {
            return Ok(Valid);
        }
        self.spend_steps(text.len() / BYTES_PER_STEP)?;
        Ok(self.check_length(schema, text.chars().count(), KEYS, "characters"))
    }

    /// Checks a length against the bounds under `keys`; `unit` names what is counted.
    pub(super) fn check_length(
        &mut self,
        schema: &Map<String, Value>,
        length: usize,
        keys: [&str; 2],
        unit: &str,
    ) -> SchemaVerdict {
        let [least, most] = keys.map(|key| schema.get(key).and_then(Value::as_u64));
        let length = length as u64;
        match (least, most) {
            (Some(least), _) if length < least => {
                self.fail(|| format!("must have at least {least} {unit}, has {length}"))
            }
            (_, Some(most)) if length > most => {
                self.fail(|| format!("must have at most {most} {unit}, has {length}"))
            }
            _ => Valid,
        }
    }

    fn check_number(&mut self, schema: &Map<String, Value>, value: &Value) -> SchemaVerdict {
        let Some(number) = value.as_f64() else { return Unknown };
        let bound = |key: &str| schema.get(key).and_then(Value::as_f64);
        // In draft 4, `exclusiveMinimum` and `exclusiveMaximum` are flags.
        let is_exclusive = |key: &str| schema.get(key) == Some(&Value::Bool(true));
        let mut verdict = Valid;
        if let Some(least) = bound("minimum")
            && (number < least || is_exclusive("exclusiveMinimum") && number == least)
        {
            verdict = self.fail(|| format!("must be at least {least}"));
        }
        if let Some(most) = bound("maximum")
            && (number > most || is_exclusive("exclusiveMaximum") && number == most)
        {
            verdict = self.fail(|| format!("must be at most {most}"));
        }
        if let Some(over) = bound("exclusiveMinimum").filter(|over| number <= *over) {
            verdict = self.fail(|| format!("must be greater than {over}"));
        }
        if let Some(under) = bound("exclusiveMaximum").filter(|under| number >= *under) {
            verdict = self.fail(|| format!("must be less than {under}"));
        }
        match (schema.get("multipleOf").map(Value::as_u64), value.as_i64()) {
            (None, _) => verdict,
            (Some(Some(step)), Some(number)) if step > 0 => match number.unsigned_abs() % step {
                0 => verdict,
                _ => self.fail(|| format!("must be a multiple of {step}")),
            },
            // Fractions are not exact enough to reject a value.
            _ => verdict.and(Unknown),
        }
    }

    /// Checks `allOf`, `anyOf`, `oneOf`, `not` and `if`.
    fn check_combinators(&mut self, schema: &'a Map<String, Value>, value: &Value) -> SchemaCheckResult {
        let list = |key: &str| schema.get(key).and_then(Value::as_array);
        let mut verdict = Valid;
        for part in list("allOf").into_iter().flatten() {
            verdict = verdict.and(self.validate(part, value)?);
        }
        if let Some(alternatives) = list("anyOf") {
            verdict = verdict.and(self.check_alternatives(alternatives, value, false)?);
        }
        if let Some(alternatives) = list("oneOf") {
            verdict = verdict.and(self.check_alternatives(alternatives, value, true)?);
        }
        if let Some(not) = schema.get("not") {
            verdict = verdict.and(match self.quietly(|check| check.validate(not, value))? {
                Valid => self.fail(|| "matches a schema that it must not match"),
                Invalid => Valid,
                Unknown => Unknown,
            });
        }
        if let Some(condition) = schema.get("if") {
            let branch = match self.quietly(|check| check.validate(condition, value))? {
                Valid => schema.get("then"),
                Invalid => schema.get("else"),
                Unknown => return Ok(verdict.and(Unknown)),
            };
            if let Some(branch) = branch {
                verdict = verdict.and(self.validate(branch, value)?);
            }
        }
        Ok(verdict)
    }

    /// Checks `anyOf`, or `oneOf` if `exactly_one` is set.
    fn check_alternatives(
        &mut self,
        alternatives: &'a [Value],
        value: &Value,
        exactly_one: bool,
    ) -> SchemaCheckResult {
        let mut valid = 0;
        let mut unknown = 0;
        for alternative in alternatives {
            match self.quietly(|check| check.validate(alternative, value))? {
                Valid => valid += 1,
                Unknown => unknown += 1,
                Invalid => {}
            }
        }
        match (valid, unknown) {
            (0, 0) => {
                let kinds = alternatives
                    .iter()
                    .take(MAX_LISTED)
                    .filter_map(|alternative| alternative["type"].as_str());
                let kinds: Vec<&str> = kinds.map(describe_type).collect();
                Ok(match (kinds.len() == alternatives.len(), alternatives) {
                    (_, [only]) => self.validate(only, value)?,
                    (true, _) if !kinds.is_empty() => {
                        self.fail(|| format!("must be {} of an allowed form", kinds.join(" or ")))
                    }
                    _ => self.fail(|| "matches none of the allowed forms"),
                })
            }
            (2.., _) if exactly_one => {
                Ok(self.fail(|| "matches more than one of the mutually exclusive forms"))
            }
            (_, 0) => Ok(Valid),
            _ if exactly_one || valid == 0 => Ok(Unknown),
            _ => Ok(Valid),
        }
    }

    /// Returns whether the next violation is recorded.
    pub(super) fn is_recording(&self) -> bool {
        self.quiet == 0 && self.violations.len() < MAX_VIOLATIONS
    }

    /// Runs a check without recording its violations.
    pub(super) fn quietly<T>(&mut self, check: impl FnOnce(&mut Self) -> T) -> T {
        self.quiet += 1;
        let result = check(self);
        self.quiet -= 1;
        result
    }

    /// Runs a check on the member or element `step` of the current value.
    pub(super) fn descend<T>(&mut self, step: &str, check: impl FnOnce(&mut Self) -> T) -> T {
        if self.quiet > 0 {
            return check(self);
        }
        self.path.push(step.to_owned());
        let result = check(self);
        self.path.pop();
        result
    }

    /// Records a violation at the current path.
    pub(super) fn fail<R: Into<String>>(&mut self, reason: impl FnOnce() -> R) -> SchemaVerdict {
        if self.is_recording() {
            let escape = |step: &String| format!("/{}", step.replace('~', "~0").replace('/', "~1"));
            let path = self.path.iter().map(escape).collect();
            self.violations.push(Violation { path, reason: reason().into() });
        }
        Invalid
    }
}
