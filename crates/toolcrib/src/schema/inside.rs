//! What a schema says of the members of an object and of the elements of an array.

use serde_json::{Map, Value};

use super::keywords::Verdict::{self, Fits, Misfits, Unsure};
use super::keywords::{Check, Found};
use crate::spelling::nearest;

/// Names among which another is looked for, and how long they may be.
const MOST: usize = 1000;
const LONGEST: usize = 64;

impl<'a> Check<'a> {
    pub(super) fn object(
        &mut self,
        schema: &'a Map<String, Value>,
        members: &Map<String, Value>,
        whole: &Value,
    ) -> Found {
        let mut verdict = self.length(schema, members.len(), ["minProperties", "maxProperties"], "members");
        let lacking = |check: &mut Self, key: &Value| match key.as_str() {
            Some(key) if !members.contains_key(key) => check.at(key, |check| check.misfit(|| "is missing")),
            _ => Fits,
        };
        for key in schema.get("required").and_then(Value::as_array).into_iter().flatten() {
            self.step()?;
            verdict = verdict.and(lacking(self, key));
        }
        let properties = schema.get("properties").and_then(Value::as_object);
        let more = schema.get("additionalProperties");
        for (key, value) in members {
            self.step()?;
            let own = properties.and_then(|properties| properties.get(key));
            let found = match (own, more) {
                (Some(schema), _) => self.at(key, |check| check.fits(schema, value))?,
                // A pattern may know it.
                (None, Some(_)) if schema.contains_key("patternProperties") => Unsure,
                (None, Some(Value::Bool(false))) => self.at(key, |check| check.stranger(key, properties)),
                (None, Some(schema)) => self.at(key, |check| check.fits(schema, value))?,
                (None, None) => Fits,
            };
            verdict = verdict.and(found);
            if let Some(names) = schema.get("propertyNames") {
                let name = Value::String(key.clone());
                verdict = verdict.and(self.at(key, |check| check.fits(names, &name))?);
            }
        }
        for keyword in ["dependentRequired", "dependentSchemas", "dependencies"] {
            let dependent = schema.get(keyword).and_then(Value::as_object).into_iter().flatten();
            for (key, needed) in dependent {
                self.step()?;
                verdict = verdict.and(match needed {
                    _ if !members.contains_key(key) => Fits,
                    Value::Array(keys) => {
                        self.steps(keys.len())?;
                        keys.iter().fold(Fits, |verdict, key| verdict.and(lacking(self, key)))
                    }
                    schema => self.fits(schema, whole)?,
                });
            }
        }
        Ok(verdict)
    }

    fn stranger(&mut self, key: &str, properties: Option<&Map<String, Value>>) -> Verdict {
        // To look for what was meant takes time.
        let known =
            properties.filter(|known| self.is_telling() && key.len() <= LONGEST && known.len() <= MOST);
        let known = known.into_iter().flat_map(Map::keys).map(String::as_str);
        match nearest(key, known.filter(|known| known.len() <= LONGEST)) {
            Some(near) => self.misfit(|| format!("is not known here; did you mean `{near}`?")),
            None => self.misfit(|| "is not known here"),
        }
    }

    pub(super) fn array(&mut self, schema: &'a Map<String, Value>, elements: &[Value]) -> Found {
        let mut verdict = self.length(schema, elements.len(), ["minItems", "maxItems"], "elements");
        let (first, rest) = match (schema.get("prefixItems"), schema.get("items")) {
            (Some(Value::Array(first)), rest) => (first.as_slice(), rest),
            (_, Some(Value::Array(first))) => (first.as_slice(), schema.get("additionalItems")),
            (_, rest) => (&[][..], rest),
        };
        for (index, element) in elements.iter().enumerate() {
            self.step()?;
            if let Some(schema) = first.get(index).or(rest) {
                verdict = verdict.and(self.at(&index.to_string(), |check| check.fits(schema, element))?);
            }
        }
        if schema.get("uniqueItems") == Some(&Value::Bool(true)) {
            verdict = verdict.and(self.unique(elements)?);
        }
        match schema.get("contains") {
            Some(contained) => Ok(verdict.and(self.contains(schema, contained, elements)?)),
            None => Ok(verdict),
        }
    }

    fn unique(&mut self, elements: &[Value]) -> Found {
        for (index, element) in elements.iter().enumerate() {
            for earlier in &elements[..index] {
                if self.same(earlier, element)? {
                    return Ok(self.at(&index.to_string(), |check| check.misfit(|| "is there twice")));
                }
            }
        }
        Ok(Fits)
    }

    fn contains(&mut self, schema: &Map<String, Value>, contained: &'a Value, elements: &[Value]) -> Found {
        let (mut fitting, mut unsure) = (0, 0);
        for element in elements {
            match self.quietly(|check| check.fits(contained, element))? {
                Fits => fitting += 1,
                Unsure => unsure += 1,
                Misfits => {}
            }
        }
        let bound = |key: &str| schema.get(key).and_then(Value::as_u64);
        let (least, most) = (bound("minContains").unwrap_or(1), bound("maxContains").unwrap_or(u64::MAX));
        if fitting + unsure < least || fitting > most {
            return Ok(self.misfit(|| "does not contain what it must"));
        }
        Ok(if unsure == 0 { Fits } else { Unsure })
    }
}
