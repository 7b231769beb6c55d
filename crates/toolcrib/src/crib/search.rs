//! Search for tools by what they do.

use std::sync::{Arc, Mutex};

use tokio::sync::OnceCell;

use super::Crib;
use crate::catalog::{Catalog, ListKind, Tool};
use crate::model::caller::Caller;
use crate::protocol::json::object::Object;
use crate::search::{Embedder, SearchField, SearchIndex, ServerText, ToolText};
use crate::spec::{ServerCard, ServerId};
use crate::util::locks::IgnorePoison as _;

/// Callers whose visible tools are kept for their next search.
const MAX_VIEWS: usize = 16;

/// A tool that a search found.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SearchHit {
    /// The tool.
    pub tool: Tool,
    /// How well it matches; comparable only with other hits of the same search.
    pub score: f32,
    /// The parts of the tool that contain words of the query.
    pub fields: Vec<SearchField>,
}

/// The index of the newest catalog that was searched. Without a search there is none.
#[derive(Debug, Default)]
pub(super) struct ToolSearch {
    embedder: Option<Arc<dyn Embedder>>,
    current: Mutex<Option<CatalogSearch>>,
}

/// The index of one catalog, which the first search builds and the others wait for.
#[derive(Debug, Clone)]
struct CatalogSearch {
    catalog: Arc<Catalog>,
    index: Arc<OnceCell<SearchIndex>>,
    /// What the last callers may call, the latest last.
    views: Arc<Mutex<Vec<SearchView>>>,
}

/// The tools of a catalog that may be called by those who have this callable catalog.
#[derive(Debug, Clone)]
struct SearchView {
    callable: Arc<Catalog>,
    /// One value per tool of the whole catalog.
    is_callable: Arc<[bool]>,
}

impl ToolSearch {
    pub(super) fn new(embedder: Option<Arc<dyn Embedder>>) -> Self {
        Self { embedder, current: Mutex::default() }
    }

    fn for_catalog(&self, catalog: Arc<Catalog>) -> CatalogSearch {
        let mut current = self.current.lock().ignore_poison();
        match &*current {
            Some(search) if Arc::ptr_eq(&search.catalog, &catalog) => search.clone(),
            _ => current
                .insert(CatalogSearch { catalog, index: Arc::default(), views: Arc::default() })
                .clone(),
        }
    }
}

impl CatalogSearch {
    /// Returns which tools may be called by those who have this callable catalog. It is computed once, because each tool is
    /// looked up.
    fn view(&self, callable: Arc<Catalog>) -> SearchView {
        let mut views = self.views.lock().ignore_poison();
        if let Some(view) = views.iter().find(|view| Arc::ptr_eq(&view.callable, &callable)) {
            return view.clone();
        }
        let is_unrestricted = Arc::ptr_eq(&callable, &self.catalog);
        let is_callable =
            |tool: &Tool| is_unrestricted || callable.has_item(&tool.server, ListKind::Tools, &tool.own_name);
        let is_callable = self.catalog.tools().iter().map(is_callable).collect();
        if views.len() >= MAX_VIEWS {
            views.remove(0);
        }
        let view = SearchView { callable, is_callable };
        views.push(view.clone());
        view
    }
}

impl Crib {
    /// Returns the tools that match a query best, of those that the local caller may call, best first. A query is a few words
    /// or a sentence about what the tool should do. Tools with equal scores are ordered by public name.
    ///
    /// Only what is known of the servers is searched: nothing is started. The first search after a change of the catalog
    /// indexes it, on another thread.
    ///
    /// ```
    /// use toolcrib::{Crib, ServerSpec, Toolbox};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let schema = serde_json::json!({"type": "object"});
    /// let tools = Toolbox::new()
    ///     .tool("send_mail", "Sends a message to a person.", &schema, |_| async { Ok(String::new()) })
    ///     .tool("add_event", "Adds an appointment to the calendar.", &schema, |_| async { Ok(String::new()) });
    /// let crib = Crib::builder().server(ServerSpec::in_process("office".parse()?, tools)).build()?;
    /// crib.list().await;
    /// let hits = crib.search("put an appointment into my calendar", 5).await;
    /// assert_eq!(&*hits[0].tool.public_name, "office__add_event");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Cancel safe. Nothing is changed.
    pub async fn search(&self, query: &str, limit: usize) -> Vec<SearchHit> {
        self.search_for(&Caller::local(), query, limit).await
    }

    /// Like [`Crib::search`], for any caller.
    ///
    /// # Cancel safety
    /// As [`Crib::search`].
    pub async fn search_for(&self, caller: &Caller, query: &str, limit: usize) -> Vec<SearchHit> {
        self.search_callable(caller, query, limit, |_| true).await
    }

    /// Like [`Crib::search_for`], among the tools of one server.
    ///
    /// # Cancel safety
    /// As [`Crib::search`].
    pub async fn search_server_for(
        &self,
        caller: &Caller,
        server: &ServerId,
        query: &str,
        limit: usize,
    ) -> Vec<SearchHit> {
        self.search_callable(caller, query, limit, |tool| tool.server == *server).await
    }

    /// Searches among the tools that a caller may call and `is_wanted` accepts. Other tools do not influence the scores.
    async fn search_callable(
        &self,
        caller: &Caller,
        query: &str,
        limit: usize,
        is_wanted: impl Fn(&Tool) -> bool,
    ) -> Vec<SearchHit> {
        let search = self.inner.search.for_catalog(self.catalog());
        let index = search.index.get_or_init(|| self.build_index(&search.catalog)).await;
        let view = search.view(self.callable_catalog_for(caller));
        let tools = search.catalog.tools();
        let is_visible = |position: usize| view.is_callable[position] && is_wanted(&tools[position]);
        let to_hit = |found: crate::search::Match| SearchHit {
            tool: tools[found.position].clone(),
            score: found.score,
            fields: found.fields,
        };
        index.search(query, limit, is_visible).into_iter().map(to_hit).collect()
    }

    /// Builds the index of a catalog on a thread for blocking work, so that calls go on meanwhile.
    async fn build_index(&self, catalog: &Arc<Catalog>) -> SearchIndex {
        let registry = &self.router().registry;
        let card = |server: &ServerId| registry.find(server).and_then(|entry| entry.spec().card.clone());
        let servers: Vec<ServerText> =
            catalog.servers().map(|server| server_text(catalog, server, card(server).as_ref())).collect();
        let embedder = self.inner.search.embedder.clone();
        let catalog = catalog.clone();
        let build = move || index_catalog(&catalog, &servers, embedder);
        let built = self.router().services.tasks.spawn_blocking(build.clone()).await;
        // The runtime refuses the work only while it shuts down.
        built.unwrap_or_else(|_| build())
    }
}

/// Indexes the tools of a catalog. `servers` is sorted by name, as the servers of the catalog are.
fn index_catalog(
    catalog: &Catalog,
    servers: &[ServerText],
    embedder: Option<Arc<dyn Embedder>>,
) -> SearchIndex {
    let unknown = ServerText::default();
    let find_server = |name: &str| {
        let found = servers.binary_search_by(|server| server.name.as_str().cmp(name));
        found.map_or(&unknown, |index| &servers[index])
    };
    let tools = catalog.tools().iter();
    let texts: Vec<ToolText<'_>> = tools
        .map(|tool| ToolText {
            server: find_server(tool.server.as_str()),
            public_name: &tool.public_name,
            definition: &tool.definition,
        })
        .collect();
    SearchIndex::build(&texts, embedder)
}

/// Collects what a server and its card say about it.
fn server_text(catalog: &Catalog, server: &ServerId, card: Option<&ServerCard>) -> ServerText {
    let info = catalog.server_info(server).and_then(|info| Object::parse(info).ok()).unwrap_or_default();
    let mut about: Vec<String> = Vec::new();
    for member in ["title", "description"] {
        about.extend(info.get_string(member).map(std::borrow::Cow::into_owned));
    }
    if let Some(card) = card {
        about.extend(card.title.clone());
        about.extend(card.description.clone());
        about.extend_from_slice(&card.tags);
    }
    ServerText { name: server.to_string(), about: about.join("\n") }
}
