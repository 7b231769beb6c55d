//! The schema keywords for members of objects and elements of arrays.

use serde_json::{Map, Value};

use super::keywords::SchemaVerdict::{self, Invalid, Unknown, Valid};
use super::keywords::{SchemaCheck, SchemaCheckResult};
use crate::util::format::closest_match;

/// Most properties among which a similar name is searched.
const MAX_CANDIDATES: usize = 1000;
/// Longest name that is compared, in bytes.
const MAX_NAME_LEN: usize = 64;

impl<'a> SchemaCheck<'a> {
    /// Checks the members of an object; `whole` is the same object as a value.
    pub(super) fn check_object(
        &mut self,
        schema: &'a Map<String, Value>,
        members: &Map<String, Value>,
        whole: &Value,
    ) -> SchemaCheckResult {
        let mut verdict =
            self.check_length(schema, members.len(), ["minProperties", "maxProperties"], "members");
        let require = |check: &mut Self, key: &Value| match key.as_str() {
            Some(key) if !members.contains_key(key) => {
                check.descend(key, |check| check.fail(|| "is missing"))
            }
            _ => Valid,
        };
        for key in schema.get("required").and_then(Value::as_array).into_iter().flatten() {
            self.spend_step()?;
            verdict = verdict.and(require(self, key));
        }
        let properties = schema.get("properties").and_then(Value::as_object);
        let additional = schema.get("additionalProperties");
        for (key, value) in members {
            self.spend_step()?;
            let declared = properties.and_then(|properties| properties.get(key));
            let member = match (declared, additional) {
                (Some(schema), _) => self.descend(key, |check| check.validate(schema, value))?,
                // A pattern may match it.
                (None, Some(_)) if schema.contains_key("patternProperties") => Unknown,
                (None, Some(Value::Bool(false))) => {
                    self.descend(key, |check| check.fail_unknown_property(key, properties))
                }
                (None, Some(schema)) => self.descend(key, |check| check.validate(schema, value))?,
                (None, None) => Valid,
            };
            verdict = verdict.and(member);
            if let Some(names) = schema.get("propertyNames") {
                let name = Value::String(key.clone());
                verdict = verdict.and(self.descend(key, |check| check.validate(names, &name))?);
            }
        }
        for keyword in ["dependentRequired", "dependentSchemas", "dependencies"] {
            let dependent = schema.get(keyword).and_then(Value::as_object).into_iter().flatten();
            for (key, dependency) in dependent {
                self.spend_step()?;
                verdict = verdict.and(match dependency {
                    _ if !members.contains_key(key) => Valid,
                    Value::Array(keys) => {
                        self.spend_steps(keys.len())?;
                        keys.iter().fold(Valid, |verdict, key| verdict.and(require(self, key)))
                    }
                    schema => self.validate(schema, whole)?,
                });
            }
        }
        Ok(verdict)
    }

    fn fail_unknown_property(&mut self, key: &str, properties: Option<&Map<String, Value>>) -> SchemaVerdict {
        let properties = properties.filter(|properties| {
            self.is_recording() && key.len() <= MAX_NAME_LEN && properties.len() <= MAX_CANDIDATES
        });
        let candidates = properties.into_iter().flat_map(Map::keys).map(String::as_str);
        match closest_match(key, candidates.filter(|name| name.len() <= MAX_NAME_LEN)) {
            Some(near) => self.fail(|| format!("is not a known property; did you mean `{near}`?")),
            None => self.fail(|| "is not a known property"),
        }
    }

    pub(super) fn check_array(
        &mut self,
        schema: &'a Map<String, Value>,
        elements: &[Value],
    ) -> SchemaCheckResult {
        let mut verdict = self.check_length(schema, elements.len(), ["minItems", "maxItems"], "elements");
        let (first, rest) = match (schema.get("prefixItems"), schema.get("items")) {
            (Some(Value::Array(first)), rest) => (first.as_slice(), rest),
            (_, Some(Value::Array(first))) => (first.as_slice(), schema.get("additionalItems")),
            (_, rest) => (&[][..], rest),
        };
        for (index, element) in elements.iter().enumerate() {
            self.spend_step()?;
            if let Some(schema) = first.get(index).or(rest) {
                verdict =
                    verdict.and(self.descend(&index.to_string(), |check| check.validate(schema, element))?);
            }
        }
        if schema.get("uniqueItems") == Some(&Value::Bool(true)) {
            verdict = verdict.and(self.check_unique(elements)?);
        }
        match schema.get("contains") {
            Some(contained) => Ok(verdict.and(self.check_contains(schema, contained, elements)?)),
            None => Ok(verdict),
        }
    }

    fn check_unique(&mut self, elements: &[Value]) -> SchemaCheckResult {
        for (index, element) in elements.iter().enumerate() {
            for earlier in &elements[..index] {
                if self.are_equal(earlier, element)? {
                    return Ok(self.descend(&index.to_string(), |check| check.fail(|| "is a duplicate")));
                }
            }
        }
        Ok(Valid)
    }

    fn check_contains(
        &mut self,
        schema: &Map<String, Value>,
        contained: &'a Value,
        elements: &[Value],
    ) -> SchemaCheckResult {
        let mut valid = 0;
        let mut unknown = 0;
        for element in elements {
            match self.quietly(|check| check.validate(contained, element))? {
                Valid => valid += 1,
                Unknown => unknown += 1,
                Invalid => {}
            }
        }
        let bound = |key: &str| schema.get(key).and_then(Value::as_u64);
        let min = bound("minContains").unwrap_or(1);
        let max = bound("maxContains").unwrap_or(u64::MAX);
        if valid + unknown < min || valid > max {
            return Ok(self.fail(|| "has too few or too many elements that match `contains`"));
        }
        Ok(if unknown == 0 { Valid } else { Unknown })
    }
}
