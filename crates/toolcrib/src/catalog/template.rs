//! `Template`: whether an address can be what a URI template (RFC 6570) was filled in to.
//!
//! It is asked to find out whose address it is, so it is generous where servers are: values may hold what should have
//! been encoded. All places where a part can end are followed at once, so no template makes it slow.

/// The longest address that is looked at.
const LONGEST: usize = 4 << 10;
/// Parts a template may have, and names one of its expressions may have.
const MOST_PARTS: usize = 64;

/// A template, taken apart.
#[derive(Debug)]
pub(super) struct Template(Vec<Part>);

#[derive(Debug)]
enum Part {
    Text(Box<str>),
    Hole(Hole),
}

/// An expression: what is between braces.
#[derive(Debug)]
struct Hole {
    /// Its operator; `{` if it has none.
    operator: u8,
    names: Vec<Box<str>>,
    /// Whether any of its values may be a whole list.
    open: bool,
}

/// Places in an address: what was matched so far can end at each that is `true`.
type Places = Vec<bool>;

impl Template {
    /// `None` for what is no template, or too long a one.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (mut parts, mut rest) = (Vec::new(), text);
        loop {
            let (plain, hole) =
                rest.split_once('{').map_or((rest, None), |(plain, hole)| (plain, Some(hole)));
            if plain.contains('}') {
                return None;
            }
            if !plain.is_empty() {
                parts.push(Part::Text(plain.into()));
            }
            let Some(hole) = hole else { break };
            let (inside, tail) = hole.split_once('}')?;
            parts.push(Part::Hole(Hole::parse(inside)?));
            rest = tail;
        }
        (parts.len() <= MOST_PARTS).then_some(Self(parts))
    }

    /// Whether the template can be filled in to give `address`.
    pub(super) fn matches(&self, address: &str) -> bool {
        let begins = match self.0.first() {
            Some(Part::Text(text)) => address.starts_with(&**text),
            _ => true,
        };
        if !begins || address.len() > LONGEST {
            return false;
        }
        let mut places = vec![false; address.len() + 1];
        places[0] = true;
        for part in &self.0 {
            places = match part {
                Part::Text(text) => after(address, &places, text),
                Part::Hole(hole) => hole.fill(address, places),
            };
        }
        places.last().copied().unwrap_or_default()
    }
}

impl Hole {
    fn parse(inside: &str) -> Option<Self> {
        let operator = inside.bytes().next().filter(|byte| b"+#./;?&".contains(byte));
        let list = if operator.is_some() { &inside[1..] } else { inside };
        let mut hole = Self { operator: operator.unwrap_or(b'{'), names: Vec::new(), open: false };
        for variable in list.split(',') {
            let name = variable.strip_suffix('*');
            hole.open |= name.is_some();
            let name = name.unwrap_or(variable);
            let name = name.split_once(':').map_or(name, |(name, _)| name);
            if name.is_empty() || name.contains(|c: char| "{=,!@|*".contains(c)) {
                return None;
            }
            hole.names.push(name.into());
        }
        (hole.names.len() <= MOST_PARTS).then_some(hole)
    }

    /// Where its value can end if it begins at one of `places`. All but the plainest are nothing at all if there is no
    /// value for them.
    fn fill(&self, address: &str, places: Places) -> Places {
        let in_segment = |byte: u8| !b"/?#".contains(&byte);
        match self.operator {
            b'{' => run(address, &one(address, &places, in_segment), in_segment),
            b'+' => run(address, &one(address, &places, |_| true), |_| true),
            b'#' => either(run(address, &after(address, &places, "#"), |_| true), &places),
            b'.' => either(run(address, &after(address, &places, "."), in_segment), &places),
            b';' => either(run(address, &after(address, &places, ";"), in_segment), &places),
            b'/' if self.open => {
                let begun = after(address, &places, "/");
                either(run(address, &begun, |byte| !b"?#".contains(&byte)), &places)
            }
            b'/' => self.repeat(places, |places| run(address, &after(address, places, "/"), in_segment)),
            b'?' => self.pairs(address, places, "?"),
            _ => self.pairs(address, places, "&"),
        }
    }

    /// `first` and then pairs of a name and a value, with `&` between them.
    fn pairs(&self, address: &str, places: Places, first: &str) -> Places {
        if self.open {
            return either(run(address, &after(address, &places, first), |byte| byte != b'#'), &places);
        }
        let mut separator = first;
        self.repeat(places, |places| {
            let begun = after(address, places, std::mem::replace(&mut separator, "&"));
            let mut values = vec![false; begun.len()];
            for name in &self.names {
                let named = after(address, &begun, name);
                values = either(either(after(address, &named, "="), &named), &values);
            }
            run(address, &values, |byte| !b"&#".contains(&byte))
        })
    }

    /// At most as many steps as there are names, or none.
    fn repeat(&self, places: Places, mut step: impl FnMut(&Places) -> Places) -> Places {
        let (mut ends, mut places) = (places.clone(), places);
        for _ in &self.names {
            places = step(&places);
            if !places.contains(&true) {
                break;
            }
            ends = either(ends, &places);
        }
        ends
    }
}

/// The places behind `text`.
fn after(address: &str, places: &[bool], text: &str) -> Places {
    let mut ends = vec![false; places.len()];
    for (at, _) in places.iter().enumerate().filter(|(_, here)| **here) {
        if address.as_bytes()[at..].starts_with(text.as_bytes()) {
            ends[at + text.len()] = true;
        }
    }
    ends
}

/// The places behind one byte that is allowed.
fn one(address: &str, places: &[bool], allowed: impl Fn(u8) -> bool) -> Places {
    let mut ends = vec![false; places.len()];
    for (at, byte) in address.bytes().enumerate() {
        ends[at + 1] = places[at] && allowed(byte);
    }
    ends
}

/// The places behind any number of bytes that are allowed.
fn run(address: &str, places: &[bool], allowed: impl Fn(u8) -> bool) -> Places {
    let mut ends = places.to_vec();
    for (at, byte) in address.bytes().enumerate() {
        ends[at + 1] |= ends[at] && allowed(byte);
    }
    ends
}

fn either(mut places: Places, others: &[bool]) -> Places {
    places.iter_mut().zip(others).for_each(|(place, other)| *place |= other);
    places
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(template: &str, address: &str) -> bool {
        Template::parse(template).unwrap().matches(address)
    }

    #[test]
    fn every_form_of_expression_matches_what_it_expands_to() {
        for (template, address) in [
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
            assert!(matches(template, address), "{template} {address}");
        }
    }

    #[test]
    fn what_it_cannot_expand_to_does_not_match() {
        for (template, address) in [
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
            assert!(!matches(template, address), "{template} {address}");
        }
        for bad in ["{", "}", "a{b", "a}b{c}", "{}", "{+}", "{=x}", "{a,,b}", "{a{b}}", &"{x}".repeat(65)] {
            assert!(Template::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_hostile_template_is_not_slow() {
        let template = Template::parse(&"{+a}".repeat(MOST_PARTS)).unwrap();
        assert!(template.matches(&"x".repeat(LONGEST)));
        assert!(!template.matches(&"x".repeat(LONGEST + 1)));
    }

    /// A part of a template and what it expands to.
    fn part() -> impl Strategy<Value = (String, String)> {
        let values = prop::collection::vec(("[a-z]{1,3}", "[a-z0-9%._~-]{1,6}"), 1..4);
        let hole = (prop::sample::select(vec!["", "+", "#", ".", "/", ";", "?", "&"]), values);
        let hole = hole.prop_map(|(operator, values)| {
            let names: Vec<&str> = values.iter().map(|(name, _)| &**name).collect();
            let named = matches!(operator, ";" | "?" | "&");
            let filled: Vec<String> = values
                .iter()
                .map(|(name, value)| if named { format!("{name}={value}") } else { value.clone() })
                .collect();
            let separator = match operator {
                "" | "+" | "#" => ",",
                "?" => "&",
                other => other,
            };
            let first = if operator == "+" { "" } else { operator };
            (format!("{{{operator}{}}}", names.join(",")), format!("{first}{}", filled.join(separator)))
        });
        prop_oneof!["[a-z:/.?=-]{1,5}".prop_map(|text| (text.clone(), text)), hole]
    }

    proptest! {
        #[test]
        fn an_expansion_matches_its_template(parts in prop::collection::vec(part(), 0..8)) {
            let (template, address): (Vec<String>, Vec<String>) = parts.into_iter().unzip();
            let (template, address) = (template.concat(), address.concat());
            prop_assert!(matches(&template, &address), "{} {}", template, address);
        }

        #[test]
        fn text_without_braces_matches_only_itself(text in "[^{}]{1,20}", other in ".{0,20}") {
            prop_assert!(matches(&text, &text));
            prop_assert_eq!(matches(&text, &other), text == other);
        }

        #[test]
        fn no_text_breaks_it(template in "[{}a-z+/?&:*,.;#]{0,30}", address in ".{0,30}") {
            if let Some(template) = Template::parse(&template) {
                template.matches(&address);
            }
        }
    }
}
