//! `StoreLink`: the connections to the servers of one store. Finds the primary by its sentinels, and the nodes of a cluster by
//! their redirections.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, timeout};
use toolcrib::store::StoreError;

use crate::command::StoreCommand;
use crate::connection::{Purpose, StoreConnection, StoreConnector};
use crate::resp::Reply;
use crate::store_url::{Address, Servers};

/// Redirections that one command follows.
const MAX_REDIRECTIONS: usize = 5;

/// Time for which nothing is sent to a node of a cluster that has failed, so that it does not delay what other nodes have.
const FAILED_NODE_PAUSE: Duration = Duration::from_secs(1);

/// The start of the replies to commands whose node failed.
pub(crate) const NODE_FAILED: &str = "NODEFAILED ";

/// Open connections, of which the main one gets the notices.
pub(crate) struct StoreLink {
    main: StoreConnection,
    /// Further nodes of a cluster.
    nodes: HashMap<Address, StoreConnection>,
    /// The nodes of slots that the main connection does not serve.
    routes: HashMap<&'static str, Address>,
    /// Nodes other than the main one that have failed, and when.
    failed: HashMap<Address, Instant>,
    /// The longest time that an exchange with one of these nodes takes, which leaves time for the others.
    node_timeout: Duration,
    connector: StoreConnector,
}

/// A redirection to another node of a cluster.
#[derive(Debug, PartialEq, Eq)]
struct Redirection {
    address: Address,
    /// Whether the slot is there from now on, and not only this key while the slot is moved.
    is_permanent: bool,
}

impl Redirection {
    /// Parses `MOVED SLOT HOST:PORT` and `ASK SLOT HOST:PORT`. An empty host is that of the node that answers.
    fn parse(error: &str, answering: &Address) -> Option<Self> {
        let mut words = error.split(' ');
        let is_permanent = match words.next()? {
            "MOVED" => true,
            "ASK" => false,
            _ => return None,
        };
        // An IPv6 address has no brackets here.
        let (host, port) = words.nth(1)?.rsplit_once(':')?;
        let host = match (host, answering) {
            ("", Address::Tcp { host, .. }) => host,
            (host, _) => host,
        };
        let address = Address::Tcp { host: host.to_owned(), port: port.parse().ok()? };
        Some(Self { address, is_permanent })
    }
}

impl StoreLink {
    /// Connects to the servers of the store; `node_timeout` limits exchanges with single nodes of a cluster.
    pub(crate) async fn open(
        connector: &StoreConnector,
        node_timeout: Duration,
        shuffle: usize,
    ) -> Result<Self, StoreError> {
        let main = match &connector.url().servers {
            Servers::One(address) => connector.open(address, Purpose::Main).await?,
            Servers::Sentinels { sentinels, primary } => {
                open_primary(connector, sentinels, primary, shuffle).await?
            }
            Servers::Cluster(nodes) => open_first(connector, nodes, Purpose::Main, shuffle).await?,
        };
        Ok(Self {
            main,
            nodes: HashMap::new(),
            routes: HashMap::new(),
            failed: HashMap::new(),
            node_timeout,
            connector: connector.clone(),
        })
    }

    /// Waits for a message that the server pushes.
    ///
    /// # Cancel safety
    /// No message is lost if the future is dropped.
    pub(crate) async fn next_push(&mut self) -> Result<Vec<Reply>, StoreError> {
        self.main.next_push().await
    }

    /// Sends commands and waits for their replies, which are in the order of the commands.
    pub(crate) async fn exchange(
        &mut self,
        commands: &[StoreCommand],
        mut push: impl FnMut(Vec<Reply>),
    ) -> Result<Vec<Reply>, StoreError> {
        if !matches!(self.connector.url().servers, Servers::Cluster(_)) {
            return self.main.exchange(commands, push).await;
        }
        let mut replies = vec![Reply::Error("ERR too many redirections".to_owned()); commands.len()];
        let mut pending: Vec<usize> = (0..commands.len()).collect();
        for _ in 0..MAX_REDIRECTIONS {
            let mut redirected = Vec::new();
            for group in self.group_by_node(&pending, commands) {
                let sent: Vec<StoreCommand> =
                    group.commands.iter().map(|index| commands[*index].clone()).collect();
                let NodeAnswers { answers, answering } =
                    self.exchange_with(group.node.as_ref(), &sent, &mut push).await?;
                for (index, answer) in group.commands.into_iter().zip(answers) {
                    match redirection(&answer, &answering) {
                        None => replies[index] = answer,
                        Some(Redirection { address, is_permanent: true }) => {
                            self.routes.extend(commands[index].slot.map(|slot| (slot, address)));
                            redirected.push(index);
                        }
                        Some(Redirection { address, is_permanent: false }) => {
                            replies[index] = self.ask(&address, &commands[index], &mut push).await;
                        }
                    }
                }
            }
            pending = redirected;
            if pending.is_empty() {
                break;
            }
        }
        Ok(replies)
    }

    /// Sends commands to one node. If a node other than the main one fails, only its commands fail, and its slots are looked up again.
    async fn exchange_with(
        &mut self,
        node: Option<&Address>,
        commands: &[StoreCommand],
        push: impl FnMut(Vec<Reply>),
    ) -> Result<NodeAnswers, StoreError> {
        let Some(address) = node.filter(|node| *node != self.main.address()) else {
            let answers = self.main.exchange(commands, push).await?;
            return Ok(NodeAnswers { answers, answering: self.main.address().clone() });
        };
        let is_paused = self.failed.get(address).is_some_and(|time| time.elapsed() < FAILED_NODE_PAUSE);
        let time = self.node_timeout;
        let exchanged = async {
            if is_paused {
                return Err(StoreError::new(format!("the node {address} of the store failed a moment ago")));
            }
            let connection = self.node(Some(address)).await?;
            connection.exchange(commands, push).await
        };
        let answers = match timeout(time, exchanged).await {
            Ok(Ok(answers)) => {
                self.failed.remove(address);
                answers
            }
            failed => {
                let error = failed.unwrap_or_else(|_| {
                    Err(StoreError::new(format!("the node {address} of the store does not answer")))
                });
                let reason = error.err().map(|error| error.to_string()).unwrap_or_default();
                self.leave_node(address, is_paused);
                vec![Reply::Error(format!("{NODE_FAILED}{reason}")); commands.len()]
            }
        };
        Ok(NodeAnswers { answers, answering: address.clone() })
    }

    /// Closes the connection to a node that has failed. Its slots are looked up again.
    fn leave_node(&mut self, address: &Address, was_paused: bool) {
        self.nodes.remove(address);
        self.routes.retain(|_, node| node != address);
        if !was_paused {
            self.failed.insert(address.clone(), Instant::now());
        }
    }

    /// Groups commands by the nodes of their slots, in order.
    fn group_by_node(&self, pending: &[usize], commands: &[StoreCommand]) -> Vec<NodeGroup> {
        let mut groups = Vec::<NodeGroup>::new();
        for index in pending {
            let node = commands[*index].slot.and_then(|slot| self.routes.get(slot));
            match groups.iter_mut().find(|group| group.node.as_ref() == node) {
                Some(group) => group.commands.push(*index),
                None => groups.push(NodeGroup { node: node.cloned(), commands: vec![*index] }),
            }
        }
        groups
    }

    /// Returns the connection to a node, or the main one.
    async fn node(&mut self, address: Option<&Address>) -> Result<&mut StoreConnection, StoreError> {
        let Some(address) = address.filter(|address| *address != self.main.address()) else {
            return Ok(&mut self.main);
        };
        if !self.nodes.contains_key(address) {
            let node = self.connector.open(address, Purpose::Node).await?;
            self.nodes.insert(address.clone(), node);
        }
        self.nodes.get_mut(address).ok_or_else(|| StoreError::new("the connection to a node is missing"))
    }

    /// Sends a command to the node that a slot is being moved to.
    async fn ask(
        &mut self,
        address: &Address,
        command: &StoreCommand,
        push: impl FnMut(Vec<Reply>),
    ) -> Reply {
        let commands = [StoreCommand::plain("ASKING", Vec::new()), command.clone()];
        match self.exchange_with(Some(address), &commands, push).await {
            Ok(NodeAnswers { answers, .. }) => answers.into_iter().next_back().unwrap_or(Reply::Null),
            Err(error) => Reply::Error(format!("{NODE_FAILED}{error}")),
        }
    }
}

/// The replies of one node.
struct NodeAnswers {
    answers: Vec<Reply>,
    answering: Address,
}

/// Commands for one node; `None` is the main connection.
struct NodeGroup {
    node: Option<Address>,
    commands: Vec<usize>,
}

fn redirection(reply: &Reply, answering: &Address) -> Option<Redirection> {
    match reply {
        Reply::Error(error) => Redirection::parse(error, answering),
        _ => None,
    }
}

/// Connects to the first address that answers, beginning with a random one.
async fn open_first(
    connector: &StoreConnector,
    addresses: &[Address],
    purpose: Purpose,
    shuffle: usize,
) -> Result<StoreConnection, StoreError> {
    let mut last_error = StoreError::new("the store has no address");
    for offset in 0..addresses.len() {
        match connector.open(&addresses[(shuffle + offset) % addresses.len()], purpose).await {
            Ok(connection) => return Ok(connection),
            Err(error) => last_error = error,
        }
    }
    Err(last_error)
}

/// Connects to the primary that the sentinels name.
async fn open_primary(
    connector: &StoreConnector,
    sentinels: &[Address],
    primary: &str,
    shuffle: usize,
) -> Result<StoreConnection, StoreError> {
    let mut sentinel = open_first(connector, sentinels, Purpose::Sentinel, shuffle).await?;
    let question = vec![Bytes::from_static(b"GET-MASTER-ADDR-BY-NAME"), Bytes::from(primary.to_owned())];
    let answer = sentinel.run("SENTINEL", question).await?;
    let Some(address) = parse_primary(&answer) else {
        let sentinel = sentinel.address();
        let message = format!("the sentinel at {sentinel} knows no primary `{primary}`; see `store.url`");
        return Err(StoreError::new(message));
    };
    // Fails while the sentinels still name a server that has become a replica.
    connector.open(&address, Purpose::Main).await
}

fn parse_primary(answer: &Reply) -> Option<Address> {
    let Reply::Array(members) = answer else { return None };
    let [Reply::Text(host), Reply::Text(port)] = members.as_slice() else { return None };
    let host = String::from_utf8(host.to_vec()).ok()?;
    let port = std::str::from_utf8(port).ok()?.parse().ok()?;
    Some(Address::Tcp { host, port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirections_are_parsed() {
        let answering = Address::Tcp { host: "a".to_owned(), port: 1 };
        let tcp = |host: &str, port| Address::Tcp { host: host.to_owned(), port };
        let parse =
            |error| Redirection::parse(error, &answering).map(|found| (found.address, found.is_permanent));
        assert_eq!(parse("MOVED 3999 127.0.0.1:6381"), Some((tcp("127.0.0.1", 6381), true)));
        assert_eq!(parse("ASK 3999 ::1:6381"), Some((tcp("::1", 6381), false)));
        assert_eq!(parse("MOVED 3999 :6381"), Some((tcp("a", 6381), true)));
        assert_eq!(parse("ERR no"), None);
    }
}
