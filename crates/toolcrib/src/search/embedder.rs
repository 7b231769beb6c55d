//! Vectors of texts, which an embedder may supply to find tools that share no word with the query.

use std::fmt;
use std::sync::Arc;

use super::index::ToolText;
use crate::util::panics;

/// A function that turns a text into a vector. Texts of similar meaning have vectors of similar direction.
///
/// ```
/// use std::sync::Arc;
/// use toolcrib::{Crib, Embedder, ServerSpec, Toolbox};
///
/// /// Knows two meanings: warm and cold.
/// #[derive(Debug)]
/// struct Temperature;
///
/// impl Embedder for Temperature {
///     fn embed(&self, text: &str) -> Option<Vec<f32>> {
///         let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
///         let vector = [has(&["hot", "heat"]), has(&["cold", "freeze"])].map(|known| if known { 1.0 } else { 0.0 });
///         vector.contains(&1.0).then(|| vector.to_vec())
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let schema = serde_json::json!({"type": "object"});
/// # let tools = Toolbox::new()
/// #     .tool("heat_room", "", &schema, |_| async { Ok(String::new()) })
/// #     .tool("freeze_food", "", &schema, |_| async { Ok(String::new()) });
/// # let house = ServerSpec::in_process("house".parse()?, tools);
/// let crib = Crib::builder().server(house).embedder(Arc::new(Temperature)).build()?;
/// crib.list().await;
/// assert_eq!(&*crib.search("make it hot", 1).await[0].tool.own_name, "heat_room");
/// # Ok(())
/// # }
/// ```
pub trait Embedder: fmt::Debug + Send + Sync {
    /// Returns the vector of a text; `None` if it has none. All vectors have the same number of values. It is called once per tool
    /// when the tools change, and once per query, and must not block.
    fn embed(&self, text: &str) -> Option<Vec<f32>>;
}

/// The vectors of tools.
#[derive(Debug)]
pub(super) struct VectorIndex {
    embedder: Arc<dyn Embedder>,
    /// One vector of length 1 per tool; empty for a tool without one.
    vectors: Vec<Box<[f32]>>,
}

impl VectorIndex {
    pub(super) fn build<'t>(
        embedder: Arc<dyn Embedder>,
        tools: impl Iterator<Item = &'t ToolText<'t>>,
    ) -> Self {
        let vectors =
            tools.map(|tool| embed(&*embedder, &tool.text_to_embed()).unwrap_or_default()).collect();
        Self { embedder, vectors }
    }

    /// Adds the similarity with a query to the scores of visible tools. A vector that equals that of the query adds `weight` times
    /// the best score.
    pub(super) fn add_similarity(
        &self,
        query: &str,
        weight: f32,
        scores: &mut [f32],
        is_visible: impl Fn(usize) -> bool,
    ) {
        let Some(query) = embed(&*self.embedder, query) else { return };
        let best = scores.iter().copied().fold(0.0, f32::max);
        let unit = if best > 0.0 { best } else { f32::from(u16::MAX) } * weight;
        let visible = self.vectors.iter().zip(scores).enumerate().filter(|(tool, _)| is_visible(*tool));
        for (_, (vector, score)) in visible {
            let cosine: f32 = vector.iter().zip(&query).map(|(left, right)| left * right).sum();
            *score += unit * cosine.max(0.0);
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.vectors) + self.vectors.iter().map(|vector| size_of_val(&**vector)).sum::<usize>()
    }
}

/// Returns the vector of a text, with length 1.
fn embed(embedder: &dyn Embedder, text: &str) -> Option<Box<[f32]>> {
    let vector = panics::contain("embedder", || embedder.embed(text)).flatten()?;
    let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    (length > 0.0 && length.is_finite()).then(|| vector.into_iter().map(|value| value / length).collect())
}
