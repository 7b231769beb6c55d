//! Decides whether a URI can be an expansion of a URI template (RFC 6570).
//!
//! Matching is lenient, as servers are: values may contain characters that should have been percent-encoded. All
//! positions where a part can end are tracked together, so no template makes matching slow.

/// Longest URI that is matched, in bytes.
const MAX_URI_LEN: usize = 4 << 10;
/// Most parts of a template, and most names in one of its expressions.
const MAX_PARTS: usize = 64;

/// A parsed template.
#[derive(Debug)]
pub struct UriTemplate(Vec<UriTemplatePart>);

#[derive(Debug)]
enum UriTemplatePart {
    Literal(Box<str>),
    Expression(UriExpression),
}

/// An expression: the part between braces.
#[derive(Debug)]
struct UriExpression {
    /// Its operator; `{` if it has none.
    operator: u8,
    names: Vec<Box<str>>,
    /// Whether a variable has the explode modifier `*`, so that its value may be a list.
    has_explode: bool,
}

/// For each offset in a URI, whether the parts matched so far can end there.
type MatchEnds = Vec<bool>;

impl UriTemplate {
    /// Parses a template. Returns `None` if it is malformed or has too many parts.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = Vec::new();
        let mut rest = text;
        loop {
            let (literal, after_brace) =
                rest.split_once('{').map_or((rest, None), |(literal, after)| (literal, Some(after)));
            if literal.contains('}') {
                return None;
            }
            if !literal.is_empty() {
                parts.push(UriTemplatePart::Literal(literal.into()));
            }
            let Some(after_brace) = after_brace else { break };
            let (expression, tail) = after_brace.split_once('}')?;
            parts.push(UriTemplatePart::Expression(UriExpression::parse(expression)?));
            rest = tail;
        }
        (parts.len() <= MAX_PARTS).then_some(Self(parts))
    }

    /// Returns whether the template can expand to `uri`.
    pub fn matches(&self, uri: &str) -> bool {
        let starts_alike = match self.0.first() {
            Some(UriTemplatePart::Literal(text)) => uri.starts_with(&**text),
            _ => true,
        };
        if !starts_alike || uri.len() > MAX_URI_LEN {
            return false;
        }
        let mut ends = vec![false; uri.len() + 1];
        ends[0] = true;
        for part in &self.0 {
            ends = match part {
                UriTemplatePart::Literal(text) => after_literal(uri, &ends, text),
                UriTemplatePart::Expression(expression) => expression.match_ends(uri, ends),
            };
        }
        ends.last().copied().unwrap_or_default()
    }
}

impl UriExpression {
    fn parse(text: &str) -> Option<Self> {
        let operator = text.bytes().next().filter(|byte| b"+#./;?&".contains(byte));
        let variables = if operator.is_some() { &text[1..] } else { text };
        let mut expression =
            Self { operator: operator.unwrap_or(b'{'), names: Vec::new(), has_explode: false };
        for variable in variables.split(',') {
            let name = variable.strip_suffix('*');
            expression.has_explode |= name.is_some();
            let name = name.unwrap_or(variable);
            let name = name.split_once(':').map_or(name, |(name, _)| name);
            if name.is_empty() || name.contains(|c: char| "{=,!@|*".contains(c)) {
                return None;
            }
            expression.names.push(name.into());
        }
        (expression.names.len() <= MAX_PARTS).then_some(expression)
    }

    /// Returns where its value can end if it starts at one of `starts`. All operators but the simple and `+` expansion
    /// may expand to nothing.
    fn match_ends(&self, uri: &str, starts: MatchEnds) -> MatchEnds {
        let in_segment = |byte: u8| !b"/?#".contains(&byte);
        match self.operator {
            b'{' => after_run(uri, &after_byte(uri, &starts, in_segment), in_segment),
            b'+' => after_run(uri, &after_byte(uri, &starts, |_| true), |_| true),
            b'#' => union(after_run(uri, &after_literal(uri, &starts, "#"), |_| true), &starts),
            b'.' => union(after_run(uri, &after_literal(uri, &starts, "."), in_segment), &starts),
            b';' => union(after_run(uri, &after_literal(uri, &starts, ";"), in_segment), &starts),
            b'/' if self.has_explode => {
                let started = after_literal(uri, &starts, "/");
                union(after_run(uri, &started, |byte| !b"?#".contains(&byte)), &starts)
            }
            b'/' => {
                self.repeat(starts, |starts| after_run(uri, &after_literal(uri, starts, "/"), in_segment))
            }
            b'?' => self.match_pairs(uri, starts, "?"),
            _ => self.match_pairs(uri, starts, "&"),
        }
    }

    /// Matches `first` and then name-value pairs with `&` between them.
    fn match_pairs(&self, uri: &str, starts: MatchEnds, first: &str) -> MatchEnds {
        if self.has_explode {
            return union(after_run(uri, &after_literal(uri, &starts, first), |byte| byte != b'#'), &starts);
        }
        let mut separator = first;
        self.repeat(starts, |starts| {
            let started = after_literal(uri, starts, std::mem::replace(&mut separator, "&"));
            let mut values = vec![false; started.len()];
            for name in &self.names {
                let named = after_literal(uri, &started, name);
                values = union(union(after_literal(uri, &named, "="), &named), &values);
            }
            after_run(uri, &values, |byte| !b"&#".contains(&byte))
        })
    }

    /// Applies `step` at most once per name, and accepts the ends of every step, including none.
    fn repeat(&self, starts: MatchEnds, mut step: impl FnMut(&MatchEnds) -> MatchEnds) -> MatchEnds {
        let mut ends = starts.clone();
        let mut current = starts;
        for _ in &self.names {
            current = step(&current);
            if !current.contains(&true) {
                break;
            }
            ends = union(ends, &current);
        }
        ends
    }
}

/// Returns the ends of `text` at each of `starts`.
fn after_literal(uri: &str, starts: &[bool], text: &str) -> MatchEnds {
    let mut ends = vec![false; starts.len()];
    for (start, _) in starts.iter().enumerate().filter(|(_, is_start)| **is_start) {
        if uri.as_bytes()[start..].starts_with(text.as_bytes()) {
            ends[start + text.len()] = true;
        }
    }
    ends
}

/// Returns the ends of one allowed byte at each of `starts`.
fn after_byte(uri: &str, starts: &[bool], is_allowed: impl Fn(u8) -> bool) -> MatchEnds {
    let mut ends = vec![false; starts.len()];
    for (offset, byte) in uri.bytes().enumerate() {
        ends[offset + 1] = starts[offset] && is_allowed(byte);
    }
    ends
}

/// Returns the ends of any number of allowed bytes at each of `starts`.
fn after_run(uri: &str, starts: &[bool], is_allowed: impl Fn(u8) -> bool) -> MatchEnds {
    let mut ends = starts.to_vec();
    for (offset, byte) in uri.bytes().enumerate() {
        ends[offset + 1] |= ends[offset] && is_allowed(byte);
    }
    ends
}

fn union(mut ends: MatchEnds, others: &[bool]) -> MatchEnds {
    ends.iter_mut().zip(others).for_each(|(end, other)| *end |= other);
    ends
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(template: &str, uri: &str) -> bool {
        UriTemplate::parse(template).unwrap().matches(uri)
    }

    #[test]
    fn every_operator_matches_its_expansions() {
        for (template, uri) in [
            ("note://{id}", "note://7"),
            ("note://{id}", "note://a%20b"),
            ("note://{id}", "note://with blank and ü"),
            ("{scheme}://x", "file://x"),
            ("pos://{x,y}", "pos://1,2"),
            ("file:///{+path}", "file:///a/b?c#d"),
            ("doc://x{#part}", "doc://x#top/1"),
            ("doc://x{#part}", "doc://x"),
            ("doc://x{.ext}", "doc://x.tar.gz"),
            ("repo://{owner}/{name}{/branch,path}", "repo://me/it/main/src"),
            ("repo://{owner}/{name}{/path*}", "repo://me/it/a/b/c/d"),
            ("q://s{?term,limit}", "q://s?term=a&limit=2"),
            ("q://s{?term,limit}", "q://s?limit=2"),
            ("q://s{?term,limit}", "q://s"),
            ("q://s?fixed=1{&term}", "q://s?fixed=1&term=x"),
            ("q://s{?all*}", "q://s?any=1&thing=2"),
            ("q://s{;x}", "q://s;x=1"),
            ("n://{id:3}", "n://abc"),
            ("demo://{kind}/static/{id}", "demo://a/static/b"),
            ("plain://x", "plain://x"),
        ] {
            assert!(matches(template, uri), "{template} {uri}");
        }
    }

    #[test]
    fn other_uris_do_not_match() {
        for (template, uri) in [
            ("note://{id}", "note://"),
            ("note://{id}", "note://a/b"),
            ("note://{id}", "notes://a"),
            ("note://{id}/end", "note://a/ends"),
            ("repo://x{/branch}", "repo://x/a/b"),
            ("q://s{?term}", "q://s?other=1"),
            ("q://s{?term}", "q://s?term=1&other=1"),
            ("q://s{?term}", "q://s&term=1"),
            ("plain://x", "plain://xy"),
        ] {
            assert!(!matches(template, uri), "{template} {uri}");
        }
        for bad in ["{", "}", "a{b", "a}b{c}", "{}", "{+}", "{=x}", "{a,,b}", "{a{b}}", &"{x}".repeat(65)] {
            assert!(UriTemplate::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn hostile_template_is_not_slow() {
        let template = UriTemplate::parse(&"{+a}".repeat(MAX_PARTS)).unwrap();
        assert!(template.matches(&"x".repeat(MAX_URI_LEN)));
        assert!(!template.matches(&"x".repeat(MAX_URI_LEN + 1)));
    }

    /// A part of a template with one of its expansions.
    fn part() -> impl Strategy<Value = (String, String)> {
        let values = prop::collection::vec(("[a-z]{1,3}", "[a-z0-9%._~-]{1,6}"), 1..4);
        let expression = (prop::sample::select(vec!["", "+", "#", ".", "/", ";", "?", "&"]), values);
        let expression = expression.prop_map(|(operator, values)| {
            let names: Vec<&str> = values.iter().map(|(name, _)| &**name).collect();
            let has_names = matches!(operator, ";" | "?" | "&");
            let expanded: Vec<String> = values
                .iter()
                .map(|(name, value)| if has_names { format!("{name}={value}") } else { value.clone() })
                .collect();
            let separator = match operator {
                "" | "+" | "#" => ",",
                "?" => "&",
                other => other,
            };
            let first = if operator == "+" { "" } else { operator };
            (format!("{{{operator}{}}}", names.join(",")), format!("{first}{}", expanded.join(separator)))
        });
        prop_oneof!["[a-z:/.?=-]{1,5}".prop_map(|text| (text.clone(), text)), expression]
    }

    proptest! {
        #[test]
        fn expansions_match_their_template(parts in prop::collection::vec(part(), 0..8)) {
            let (template, uri): (Vec<String>, Vec<String>) = parts.into_iter().unzip();
            let (template, uri) = (template.concat(), uri.concat());
            prop_assert!(matches(&template, &uri), "{} {}", template, uri);
        }

        #[test]
        fn literal_template_matches_only_itself(text in "[^{}]{1,20}", other in ".{0,20}") {
            prop_assert!(matches(&text, &text));
            prop_assert_eq!(matches(&text, &other), text == other);
        }

        #[test]
        fn arbitrary_templates_never_panic(template in "[{}a-z+/?&:*,.;#]{0,30}", uri in ".{0,30}") {
            if let Some(template) = UriTemplate::parse(&template) {
                template.matches(&uri);
            }
        }
    }
}
