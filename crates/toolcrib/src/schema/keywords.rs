//! Goes through a schema and a value together, keyword by keyword, for a bounded number of steps.
//! What stands in objects and arrays is in `inside.rs`.

use serde_json::{Map, Value};

use super::Misfit;
use super::numbers::{WIDTH, brief, is_whole, kind, named, same};

/// Steps after which nobody asks any more.
const STEPS: u32 = 100_000;
/// How deep schemas may lead into each other.
const DEEPEST: u32 = 100;
/// Misfits that are kept.
const MOST: usize = 20;
/// Values of an `enum` that are named.
const NAMED: usize = 8;

/// Keywords that say something about a value which is not understood here.
const UNKNOWN: [&str; 7] = [
    "pattern",
    "format",
    "patternProperties",
    "unevaluatedProperties",
    "unevaluatedItems",
    "$dynamicRef",
    "$recursiveRef",
];

/// What a schema says about a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Fits,
    Misfits,
    /// It depends on something that is not understood here.
    Unsure,
}

use Verdict::{Fits, Misfits, Unsure};

impl Verdict {
    pub(super) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Misfits, _) | (_, Misfits) => Misfits,
            (Unsure, _) | (_, Unsure) => Unsure,
            (Fits, Fits) => Fits,
        }
    }
}

/// It takes too long to find out.
#[derive(Debug)]
pub(super) struct TooLong;

pub(super) type Found = Result<Verdict, TooLong>;

/// One look at a value.
pub(super) struct Check<'a> {
    root: &'a Value,
    is_old: bool,
    steps: u32,
    depth: u32,
    /// Where in the value it is.
    path: Vec<String>,
    /// Whether misfits are worth telling: not those of a choice that may have another.
    quiet: u32,
    pub(super) misfits: Vec<Misfit>,
}

impl<'a> Check<'a> {
    pub(super) fn new(root: &'a Value, is_old: bool) -> Self {
        let (path, misfits) = (Vec::new(), Vec::new());
        Self { root, is_old, steps: STEPS, depth: 0, path, quiet: 0, misfits }
    }

    pub(super) fn whole(&mut self, value: &Value) -> Found {
        self.fits(self.root, value)
    }

    pub(super) fn step(&mut self) -> Result<(), TooLong> {
        self.steps(1)
    }

    /// What takes time costs steps.
    pub(super) fn steps(&mut self, count: usize) -> Result<(), TooLong> {
        let count = u32::try_from(count).map_err(|_| TooLong)?;
        self.steps = self.steps.checked_sub(count).ok_or(TooLong)?;
        Ok(())
    }

    /// Whether two values are the same.
    pub(super) fn same(&mut self, one: &Value, other: &Value) -> Result<bool, TooLong> {
        same(one, other, &mut self.steps)
    }

    pub(super) fn fits(&mut self, schema: &'a Value, value: &Value) -> Found {
        self.step()?;
        let schema = match schema {
            Value::Object(schema) => schema,
            Value::Bool(false) => return Ok(self.misfit(|| "is not allowed here")),
            _ => return Ok(Fits),
        };
        if self.depth == DEEPEST {
            return Err(TooLong);
        }
        self.depth += 1;
        let verdict = self.keywords(schema, value);
        self.depth -= 1;
        verdict
    }

    fn keywords(&mut self, schema: &'a Map<String, Value>, value: &Value) -> Found {
        let referred = self.reference(schema, value)?;
        if self.is_old && schema.contains_key("$ref") {
            return Ok(referred);
        }
        let about = |key: &str| match key {
            "pattern" | "format" => value.is_string(),
            "patternProperties" | "unevaluatedProperties" => value.is_object(),
            "unevaluatedItems" => value.is_array(),
            _ => true,
        };
        let unknown = UNKNOWN.iter().any(|key| about(key) && schema.contains_key(*key));
        let mut verdict = referred.and(if unknown { Unsure } else { Fits });
        verdict = verdict.and(self.kinds(schema, value)?);
        verdict = verdict.and(match value {
            Value::Object(members) => self.object(schema, members, value)?,
            Value::Array(elements) => self.array(schema, elements)?,
            Value::String(text) => self.string(schema, text)?,
            Value::Number(_) => self.number(schema, value),
            Value::Null | Value::Bool(_) => Fits,
        });
        Ok(verdict.and(self.choices(schema, value)?))
    }

    /// Follows a `$ref` within the schema; one that leads anywhere else is followed by nobody.
    fn reference(&mut self, schema: &'a Map<String, Value>, value: &Value) -> Found {
        let Some(Value::String(target)) = schema.get("$ref") else { return Ok(Fits) };
        let pointer =
            target.strip_prefix('#').filter(|pointer| pointer.is_empty() || pointer.starts_with('/'));
        let root = self.root;
        match pointer.filter(|pointer| !pointer.contains('%')).and_then(|pointer| root.pointer(pointer)) {
            Some(schema) => self.fits(schema, value),
            None => Ok(Unsure),
        }
    }

    fn kinds(&mut self, schema: &'a Map<String, Value>, value: &Value) -> Found {
        let is = |kind: &str| match kind {
            "null" => value.is_null(),
            "boolean" => value.is_boolean(),
            "integer" => value.as_number().is_some_and(is_whole),
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
        self.steps(kinds.len())?;
        let mut verdict = Fits;
        if !kinds.is_empty() && !kinds.iter().any(|kind| kind.as_str().is_none_or(is)) {
            let wanted: Vec<&str> = kinds.iter().take(NAMED).filter_map(Value::as_str).map(named).collect();
            verdict = self.misfit(|| format!("must be {}, not {}", wanted.join(" or "), kind(value)));
        }
        if let Some(Value::Array(allowed)) = schema.get("enum") {
            let mut is_allowed = false;
            for allowed in allowed {
                is_allowed |= self.same(allowed, value)?;
            }
            if !is_allowed {
                verdict = self.misfit(|| {
                    let names: Vec<String> = allowed.iter().take(NAMED).map(brief).collect();
                    let more = if allowed.len() > NAMED { ", …" } else { "" };
                    format!("must be one of {}{more}", names.join(", "))
                });
            }
        }
        match schema.get("const") {
            Some(only) if !self.same(only, value)? => Ok(self.misfit(|| format!("must be {}", brief(only)))),
            _ => Ok(verdict),
        }
    }

    fn string(&mut self, schema: &Map<String, Value>, text: &str) -> Found {
        const KEYS: [&str; 2] = ["minLength", "maxLength"];
        if !KEYS.iter().any(|key| schema.contains_key(*key)) {
            return Ok(Fits);
        }
        self.steps(text.len() / WIDTH)?;
        Ok(self.length(schema, text.chars().count(), KEYS, "characters"))
    }

    pub(super) fn length(
        &mut self,
        schema: &Map<String, Value>,
        length: usize,
        keys: [&str; 2],
        what: &str,
    ) -> Verdict {
        let [least, most] = keys.map(|key| schema.get(key).and_then(Value::as_u64));
        let length = length as u64;
        match (least, most) {
            (Some(least), _) if length < least => {
                self.misfit(|| format!("must have at least {least} {what}, and has {length}"))
            }
            (_, Some(most)) if length > most => {
                self.misfit(|| format!("must have at most {most} {what}, and has {length}"))
            }
            _ => Fits,
        }
    }

    fn number(&mut self, schema: &Map<String, Value>, value: &Value) -> Verdict {
        let Some(number) = value.as_f64() else { return Unsure };
        let bound = |key: &str| schema.get(key).and_then(Value::as_f64);
        // The oldest schemas say only whether the other bound counts.
        let is_open = |key: &str| schema.get(key) == Some(&Value::Bool(true));
        let mut verdict = Fits;
        if let Some(least) = bound("minimum")
            && (number < least || is_open("exclusiveMinimum") && number == least)
        {
            verdict = self.misfit(|| format!("must be at least {least}"));
        }
        if let Some(most) = bound("maximum")
            && (number > most || is_open("exclusiveMaximum") && number == most)
        {
            verdict = self.misfit(|| format!("must be at most {most}"));
        }
        if let Some(over) = bound("exclusiveMinimum").filter(|over| number <= *over) {
            verdict = self.misfit(|| format!("must be more than {over}"));
        }
        if let Some(under) = bound("exclusiveMaximum").filter(|under| number >= *under) {
            verdict = self.misfit(|| format!("must be less than {under}"));
        }
        match (schema.get("multipleOf").map(Value::as_u64), value.as_i64()) {
            (None, _) => verdict,
            (Some(Some(step)), Some(number)) if step > 0 => match number.unsigned_abs() % step {
                0 => verdict,
                _ => self.misfit(|| format!("must be a multiple of {step}")),
            },
            // Fractions are not exact enough to say no.
            _ => verdict.and(Unsure),
        }
    }

    fn choices(&mut self, schema: &'a Map<String, Value>, value: &Value) -> Found {
        let list = |key: &str| schema.get(key).and_then(Value::as_array);
        let mut verdict = Fits;
        for part in list("allOf").into_iter().flatten() {
            verdict = verdict.and(self.fits(part, value)?);
        }
        for (key, is_one) in [("anyOf", false), ("oneOf", true)] {
            if let Some(forms) = list(key) {
                verdict = verdict.and(self.any(forms, value, is_one)?);
            }
        }
        if let Some(not) = schema.get("not") {
            verdict = verdict.and(match self.quietly(|check| check.fits(not, value))? {
                Fits => self.misfit(|| "is what it must not be"),
                Misfits => Fits,
                Unsure => Unsure,
            });
        }
        if let Some(when) = schema.get("if") {
            let branch = match self.quietly(|check| check.fits(when, value))? {
                Fits => schema.get("then"),
                Misfits => schema.get("else"),
                Unsure => return Ok(verdict.and(Unsure)),
            };
            if let Some(branch) = branch {
                verdict = verdict.and(self.fits(branch, value)?);
            }
        }
        Ok(verdict)
    }

    fn any(&mut self, forms: &'a [Value], value: &Value, is_one: bool) -> Found {
        let (mut fitting, mut unsure) = (0, 0);
        for form in forms {
            match self.quietly(|check| check.fits(form, value))? {
                Fits => fitting += 1,
                Unsure => unsure += 1,
                Misfits => {}
            }
        }
        match (fitting, unsure) {
            (0, 0) => {
                let kinds = forms.iter().take(NAMED).filter_map(|form| form["type"].as_str());
                let kinds: Vec<&str> = kinds.map(named).collect();
                Ok(match (kinds.len() == forms.len(), forms) {
                    (_, [only]) => self.fits(only, value)?,
                    (true, _) if !kinds.is_empty() => self
                        .misfit(|| format!("must be {}, in a form that is known here", kinds.join(" or "))),
                    _ => self.misfit(|| "fits none of the forms that are known here"),
                })
            }
            (2.., _) if is_one => {
                Ok(self.misfit(|| "fits more than one of the forms that exclude each other"))
            }
            (_, 0) => Ok(Fits),
            _ if is_one || fitting == 0 => Ok(Unsure),
            _ => Ok(Fits),
        }
    }

    /// Whether anybody hears of the next misfit.
    pub(super) fn is_telling(&self) -> bool {
        self.quiet == 0 && self.misfits.len() < MOST
    }

    pub(super) fn quietly<T>(&mut self, look: impl FnOnce(&mut Self) -> T) -> T {
        self.quiet += 1;
        let found = look(self);
        self.quiet -= 1;
        found
    }

    pub(super) fn at<T>(&mut self, step: &str, look: impl FnOnce(&mut Self) -> T) -> T {
        if self.quiet > 0 {
            return look(self);
        }
        self.path.push(step.to_owned());
        let found = look(self);
        self.path.pop();
        found
    }

    pub(super) fn misfit<W: Into<String>>(&mut self, why: impl FnOnce() -> W) -> Verdict {
        if self.is_telling() {
            let step = |step: &String| format!("/{}", step.replace('~', "~0").replace('/', "~1"));
            let path = self.path.iter().map(step).collect();
            self.misfits.push(Misfit { path, why: why().into() });
        }
        Misfits
    }
}
