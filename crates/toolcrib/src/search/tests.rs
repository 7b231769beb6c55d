//! Tests of the ranking and of unusual queries.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;

fn definition(name: &str, description: &str) -> String {
    let schema = serde_json::json!({"properties": {"path": {"description": "Where it is"}}});
    serde_json::json!({"name": name, "description": description, "inputSchema": schema}).to_string()
}

/// Returns the names that a query finds among these tools, best first.
fn search(tools: &[(&str, &str)], query: &str, embedder: Option<Arc<dyn Embedder>>) -> Vec<String> {
    let server = ServerText { name: "home".to_owned(), about: "kitchen".to_owned() };
    let definitions: Vec<String> = tools.iter().map(|(name, text)| definition(name, text)).collect();
    let to_text = |index: usize| ToolText {
        server: &server,
        public_name: tools[index].0,
        definition: definitions[index].as_bytes(),
    };
    let texts: Vec<ToolText<'_>> = (0..tools.len()).map(to_text).collect();
    let found = SearchIndex::build(&texts, embedder).search(query, 10, |_| true);
    found.into_iter().map(|found| tools[found.position].0.to_owned()).collect()
}

const TOOLS: &[(&str, &str)] = &[
    ("getWeather", "Returns the forecast for a city."),
    ("translate_text", "Translates a text into another language."),
    ("list_repositories", "Lists the repositories of a user. Sorted by name."),
    ("zeta", "Does nothing."),
    ("alpha", "Does nothing."),
];

#[test]
fn query_finds_other_forms_of_its_words() {
    assert_eq!(search(TOOLS, "weather forecasts", None)[0], "getWeather");
    assert_eq!(search(TOOLS, "Please give me a translation of this", None)[0], "translate_text");
    assert_eq!(search(TOOLS, "repo", None), ["list_repositories"]);
    assert_eq!(search(TOOLS, "repositoryservice", None), Vec::<String>::new());
    assert_eq!(search(TOOLS, "getweather", None)[0], "getWeather");
    assert_eq!(search(TOOLS, "kitchen", None).len(), TOOLS.len());
}

#[test]
fn equal_scores_are_ordered_by_name() {
    assert_eq!(search(TOOLS, "nothing", None), ["alpha", "zeta"]);
    let mut reversed = TOOLS.to_vec();
    reversed.reverse();
    assert_eq!(search(&reversed, "nothing", None), ["alpha", "zeta"]);
}

#[test]
fn unusual_queries_have_an_answer() {
    assert!(search(TOOLS, "", None).is_empty());
    assert!(search(TOOLS, "天気 ☃ \u{0}", None).is_empty());
    assert!(search(TOOLS, &"weather ".repeat(200_000), None).len() == 1);
    assert_eq!(search(TOOLS, "'; DROP TABLE weather; --", None)[0], "getWeather");
    assert_eq!(search(TOOLS, r"^(?i)translat.*\btext\b$", None)[0], "translate_text");
    assert!(search(TOOLS, "the of a", None).contains(&"getWeather".to_owned()), "stop words count a little");
    assert!(search(TOOLS, "a xylophone for the kids", None).is_empty(), "stop words alone do not suffice");
    assert!(search(&[], "weather", None).is_empty());
}

#[test]
fn limit_counts_only_visible_tools() {
    let server = ServerText::default();
    let definitions: Vec<String> = (0..50).map(|index| definition(&format!("copy_{index}"), "")).collect();
    let texts: Vec<ToolText<'_>> = definitions
        .iter()
        .map(|definition| ToolText {
            server: &server,
            public_name: definition,
            definition: definition.as_bytes(),
        })
        .collect();
    let index = SearchIndex::build(&texts, None);
    let found = index.search("copy", 3, |position| position % 10 == 7);
    assert_eq!(found.iter().map(|found| found.position).collect::<Vec<_>>(), [17, 27, 37]);
    assert_eq!(found[0].fields, [SearchField::Name]);
    assert!(index.search("copy", 0, |_| true).is_empty());
    assert_eq!(index.len(), 50);
}

/// Knows that rain is weather, and panics or fails for some other texts.
#[derive(Debug)]
struct Rain;

impl Embedder for Rain {
    fn embed(&self, text: &str) -> Option<Vec<f32>> {
        assert!(!text.contains("panic"), "on purpose");
        match text {
            "nan" => Some(vec![f32::NAN]),
            _ if text.contains("rain") || text.contains("weather") => Some(vec![2.0, 0.0]),
            _ => None,
        }
    }
}

#[test]
fn vectors_find_tools_without_a_common_word() {
    let rain = || Some(Arc::new(Rain) as Arc<dyn Embedder>);
    assert!(search(TOOLS, "rain", None).is_empty());
    assert_eq!(search(TOOLS, "rain", rain()), ["getWeather"]);
    assert_eq!(search(TOOLS, "text panic", rain())[0], "translate_text");
    assert!(search(TOOLS, "nan", rain()).is_empty());
}

proptest! {
    #[test]
    fn hidden_tools_do_not_influence_the_results(
        texts in prop::collection::vec("(send|mail|file|repo|weathe|weather|a|the|tool)( (read|sender|files|of|re)){0,4}", 1..12),
        hidden in prop::collection::vec(any::<bool>(), 12),
        query in "(sen|mail|fil|the|repository|weather|readers)( (a|send|files|wea|of)){0,3}",
        has_vectors: bool,
    ) {
        let server = ServerText::default();
        let definitions: Vec<String> =
            texts.iter().enumerate().map(|(index, text)| definition(&format!("tool_{index:02}"), text)).collect();
        let embedder = || has_vectors.then(|| Arc::new(Rain) as Arc<dyn Embedder>);
        let texts = definitions.iter().map(String::as_bytes);
        let all: Vec<ToolText<'_>> =
            texts.map(|definition| ToolText { server: &server, public_name: "", definition }).collect();
        let visible: Vec<usize> = (0..all.len()).filter(|position| !hidden[*position]).collect();
        let visible_only: Vec<ToolText<'_>> = visible.iter().map(|position| all[*position]).collect();
        let found = SearchIndex::build(&all, embedder()).search(&query, 5, |position| !hidden[position]);
        let mut expected = SearchIndex::build(&visible_only, embedder()).search(&query, 5, |_| true);
        expected.iter_mut().for_each(|found| found.position = visible[found.position]);
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn any_query_finds_each_tool_at_most_once(query in ".{0,300}") {
        let mut found = search(TOOLS, &query, None);
        found.sort();
        let count = found.len();
        found.dedup();
        prop_assert_eq!(found.len(), count);
    }
}
