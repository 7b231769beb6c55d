//! Starts a server: from its spec to a connection with a completed handshake and a listing.

use std::sync::{Arc, OnceLock, RwLock};
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::fair_queue::FairQueue;
use super::handshake::{HandshakeError, HandshakePlan, HandshakeSuccess, perform_handshake};
use super::mux::{Mux, MuxContext};
use super::on_question::OnQuestion;
use super::subscriptions::ResourceSubscriptions;
use super::task_call::TaskOnlyTools;

use super::transport::input_pipe::InputPipe;
use super::transport::output_pipe::OutputPipe;
use super::transport::stdio::StdioTransport;
use super::transport::{MessageLimit, Transport, http};
use super::{CallSettings, Connection, Peer};
use crate::cache::ResponseCache;
use crate::call::client_context::InstanceOwner;
use crate::call::client_declaration::ClientDeclaration;
use crate::model::error::{Error, ErrorKind};
use crate::model::event::ServerNotification;
use crate::model::exit_report::ProcessExit;
use crate::model::failure_class::{Delivery, FailureClass};
use crate::model::hint::Hint;
use crate::model::listing::FetchedListing;
use crate::observer::event_channel::EventChannel;
use crate::process::environment::find_credentials;
use crate::process::stderr::StderrTail;
use crate::process::{ServerProcess, SpawnContext, SpawnError, Spawner};
use crate::protocol::era::shorten_server_info;
use crate::protocol::list_kind::ListKind;
use crate::protocol::versions::Era;
use crate::secrets::{Redactor, ResolvedSecrets, SecretStoreHandle};
use crate::spec::secret::SecretError;
use crate::spec::{CommandSpec, Endpoint, HttpSpec, InProcessServer, Pinning, ServerCard, ServerSpec};
use crate::upstream::listing::{ClientLists, fetch_listing};
use crate::upstream::transport::in_process::InProcessTransport;
use crate::util::tasks::SpawnBoxed as _;

/// Buffer size in each direction for an in-process server.
const PIPE_CAPACITY: usize = 64 << 10;

/// Time that the list of tools has before calls are made. If it takes longer, the lists are requested again, and delay only those
/// who ask for them.
const LIST_PATIENCE: Duration = Duration::from_secs(2);

/// Time after which an exit without an answer to `initialize` counts as a crash. It is reported before the server is
/// started again.
const LATE_EXIT: Duration = Duration::from_secs(2);

/// The reason why a server did not start.
#[derive(Debug)]
pub(crate) struct StartFailure {
    /// Always has a failure class.
    pub(crate) error: Error,
    /// True if the server also exited when the other era was tried, so that trying both again is pointless.
    pub(crate) exited_in_both_eras: bool,
    /// True if the server exited after it had run for a while.
    pub(crate) exited_late: bool,
    /// The era that was required, if the server speaks only the other one. The server itself is in order.
    pub(crate) refused_era: Option<RefusedEra>,
}

/// An era that a server does not speak, as its start has shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RefusedEra {
    pub(crate) era: Era,
    /// True if the server exited without a word, which may also have been a crash, or was silent.
    pub(crate) is_only_exit: bool,
}

impl RefusedEra {
    /// Creates the refusal of an era by a server that answered.
    pub(crate) fn answered(era: Era) -> Self {
        Self { era, is_only_exit: false }
    }
}

impl StartFailure {
    /// Creates a failure that says nothing about the era.
    pub(crate) fn new(error: Error) -> Self {
        Self { error, exited_in_both_eras: false, exited_late: false, refused_era: None }
    }

    /// Creates the failure of a server that exited when the only era was tried in which it is of use.
    fn exited_in(era: Era, is_only_exit: bool) -> Self {
        let error = misconfigured(format!("it exited when the {} era was tried", era.as_str()));
        Self { refused_era: Some(RefusedEra { era, is_only_exit }), ..Self::new(error) }
    }
}

/// A server that was started.
#[derive(Debug)]
pub(crate) struct Launched {
    pub(crate) connection: Connection,
    pub(crate) fetched: FetchedListing,
    /// The era that the server does not speak, if the start has shown that.
    pub(crate) refused_era: Option<RefusedEra>,
}

/// The services and identity that a connection is started with.
#[derive(Debug, Clone)]
pub(crate) struct LaunchContext {
    /// Owns all tasks.
    pub(crate) tasks: TaskTracker,
    /// Tracks servers that were started and are not gone yet.
    pub(crate) running: TaskTracker,
    pub(crate) spawner: Arc<Spawner>,
    pub(crate) stderr: Arc<StderrTail>,
    /// Receives notifications that belong to no call.
    pub(crate) notifications: EventChannel<ServerNotification>,
    pub(crate) cache: Arc<ResponseCache>,
    /// The first line on stdout of this start that is not a message.
    pub(crate) first_garbage_line: Arc<OnceLock<String>>,
    /// The client that the instance belongs to, if any.
    pub(crate) owner: Arc<InstanceOwner>,
    /// The client that servers see.
    pub(crate) declaration: Arc<ClientDeclaration>,
    pub(crate) secrets: Option<SecretStoreHandle>,
    /// Learns about requests to clients, of a server that clients share.
    pub(crate) on_question: Option<OnQuestion>,
    /// The tokens with which callers authenticate.
    #[cfg(feature = "http")]
    pub(crate) known_callers: crate::secrets::KnownCallers,
    /// The logins to remote servers.
    #[cfg(feature = "http")]
    pub(crate) logins: Option<crate::oauth::Logins>,
    /// The place for the card that a remote server publishes; none is requested without it.
    #[cfg_attr(not(feature = "http"), expect(dead_code, reason = "only remote servers publish cards"))]
    pub(crate) published_card: Option<Arc<OnceLock<ServerCard>>>,
}

/// The secrets of the new connection, and the redactor that removes them from output.
struct SecretsAndRedactor {
    secrets: ResolvedSecrets,
    redactor: Arc<Redactor>,
}

impl LaunchContext {
    fn new_mux(&self, spec: &ServerSpec, redactor: Arc<Redactor>, transport: impl Transport) -> Mux {
        let context = MuxContext {
            owner: self.owner.clone(),
            handlers: self.declaration.handlers.clone(),
            notifications: self.notifications.clone(),
            cache: self.cache.clone(),
            first_garbage_line: self.first_garbage_line.clone(),
            redactor,
            tasks: self.tasks.clone(),
            on_question: self.on_question.clone(),
            logs_name_requests: matches!(&spec.endpoint, Endpoint::InProcess(server) if server.0.wants_call_context()),
        };
        Mux::new(spec.id.clone(), context, transport)
    }
}

/// Starts a server, performs the handshake and fetches the listing. A server that exits when the first era is tried is
/// started again for the other one. Without `needs_lists`, no list is fetched.
///
/// Dropping the future kills the started server. Earlier instances must be gone before the server is started.
pub(crate) async fn launch(
    spec: &ServerSpec,
    plan: HandshakePlan,
    context: &LaunchContext,
    needs_lists: bool,
) -> Result<Launched, StartFailure> {
    let secrets_and_redactor = resolve_secrets(spec, context).await?;
    let mut refused_by_exit = None;
    let connected = match connect(spec, plan, context, &secrets_and_redactor).await {
        // The other instance serves the other era, so that need not be tried here.
        Err(HandshakeError::Exited { tried, refusal })
            if plan == HandshakePlan::Require(tried)
                && !spec.is_remote()
                && (tried == Era::Stateless || refusal.is_some()) =>
        {
            return Err(StartFailure::exited_in(tried, refusal.is_none()));
        }
        Err(HandshakeError::Exited { tried, refusal }) => {
            refused_by_exit = Some(RefusedEra { era: tried, is_only_exit: refusal.is_none() });
            let plan = HandshakePlan::AfterExit(tried.other());
            let connected = connect(spec, plan, context, &secrets_and_redactor).await;
            // The words of the server explain more than its exit.
            connected.map_err(|error| refusal.map_or(error, HandshakeError::Failed))
        }
        connected => connected,
    };
    let failed = |error: Error| {
        let class = failure_class(spec, &error);
        let start_error = start_error(spec, &error, &secrets_and_redactor.redactor);
        let start_error = match (class, error.own_hint()) {
            (FailureClass::Misconfigured, None) => {
                start_error.with_hint(Hint::RepairServer { server: spec.id.clone() })
            }
            _ => start_error,
        };
        let error = start_error.with_class(class);
        StartFailure { exited_in_both_eras: refused_by_exit.is_some(), ..StartFailure::new(error) }
    };
    let Connected { connection, refused_era: answered } = connected.map_err(|error| match error {
        HandshakeError::Failed(error) => failed(error),
        HandshakeError::ExitedLate(error) => StartFailure { exited_late: true, ..failed(error) },
        HandshakeError::Exited { .. } => failed(Error::new(ErrorKind::Lost, "it exited immediately")),
    })?;
    let era = connection.era();
    let refused_era = answered.map(RefusedEra::answered).or(refused_by_exit);
    if let HandshakePlan::Require(required) = plan
        && era != required
    {
        let error = misconfigured(format!("it speaks only the {} era", era.as_str()));
        let refused_era = Some(refused_era.unwrap_or(RefusedEra::answered(required)));
        return Err(StartFailure { refused_era, ..failed(error) });
    }
    let refused_era = refusal_to_remember(spec, plan, era, refused_era);
    let fetched = match needs_lists {
        true => read_first_lists(&connection, spec).await.map_err(failed)?,
        false => FetchedListing::unread(connection.handshake_listing()),
    };
    Ok(Launched { connection, fetched, refused_era })
}

/// Reads the lists of a server that was just started; none if its tools take long.
async fn read_first_lists(connection: &Connection, spec: &ServerSpec) -> Result<FetchedListing, Error> {
    let tools_done = CancellationToken::new();
    let tools_are_late = async {
        // With strict pins, calls are compared with the lists.
        let is_awaited = spec.pin == Pinning::Strict;
        if is_awaited || timeout(LIST_PATIENCE, tools_done.cancelled()).await.is_ok() {
            std::future::pending::<()>().await;
        }
    };
    let fetched = tokio::select! {
        fetched = fetch_listing(connection, &tools_done) => fetched?,
        () = tools_are_late => FetchedListing::unread(connection.handshake_listing()),
    };
    // An error that the server answered with concerns only the list.
    let mut causes = fetched.failures.iter().filter(|failure| failure.kind == ListKind::Tools);
    match causes.find_map(|failure| failure.cause.clone()) {
        Some(cause) => Err(cause),
        None => Ok(fetched),
    }
}

/// Returns what a successful start in `era` shows about the other one, if that is to be remembered.
fn refusal_to_remember(
    spec: &ServerSpec,
    plan: HandshakePlan,
    era: Era,
    refused: Option<RefusedEra>,
) -> Option<RefusedEra> {
    // An exit on `initialize` is more often a crash, so that alone is not a refusal of sessions.
    let is_crash = |refused: &RefusedEra| refused.is_only_exit && refused.era == Era::Session;
    // An instance for stateless clients that runs in a session serves all clients.
    let was_silent = plan == HandshakePlan::Prefer(Era::Stateless) && era == Era::Session;
    let silence = RefusedEra { era: Era::Stateless, is_only_exit: true };
    refused
        .filter(|refused| !is_crash(refused))
        .or((was_silent && spec.has_instance_per_era()).then_some(silence))
}

/// Looks up the secrets that a server's command or headers refer to.
async fn resolve_secrets(
    spec: &ServerSpec,
    context: &LaunchContext,
) -> Result<SecretsAndRedactor, StartFailure> {
    match ResolvedSecrets::resolve(spec, context.secrets.as_ref(), &context.tasks).await {
        Ok(secrets) => {
            let redactor = Arc::new(secrets.redactor(&find_credentials(&spec.endpoint)));
            Ok(SecretsAndRedactor { redactor, secrets })
        }
        Err((name, error)) => {
            let error =
                Error::new(ErrorKind::AuthNeeded, error.message(&name)).with_hint(secret_hint(&name, &error));
            let error = start_error(spec, &error, &Redactor::default()).with_class(FailureClass::NeedsAuth);
            Err(StartFailure::new(error))
        }
    }
}

/// Waits until all servers that were started before are gone.
pub(crate) async fn wait_until_exited(running: &TaskTracker) {
    running.close();
    running.wait().await;
    running.reopen();
}

/// A connection with a completed handshake.
struct Connected {
    connection: Connection,
    /// The era that the server refused in the handshake.
    refused_era: Option<Era>,
}

async fn connect(
    spec: &ServerSpec,
    plan: HandshakePlan,
    context: &LaunchContext,
    secrets_and_redactor: &SecretsAndRedactor,
) -> Result<Connected, HandshakeError> {
    wait_until_exited(&context.running).await;
    let began = Instant::now();
    let message_limit = MessageLimit::new(spec.limits.message);
    let (mux, peer) = match &spec.endpoint {
        Endpoint::Command(command) => {
            open_process(spec, command, context, secrets_and_redactor, message_limit.clone()).await?
        }
        Endpoint::Http(remote) => {
            open_remote(spec, remote, context, secrets_and_redactor, message_limit.clone()).await?
        }
        Endpoint::InProcess(server) => open_in_process(spec, server, context, message_limit.clone()),
    };
    let waits_for_reply = matches!(peer, Peer::Remote);
    let client = context.declaration.handshake_client(&context.owner);
    let HandshakeSuccess { result: handshake, refused: refused_era } =
        match perform_handshake(&mux, plan, waits_for_reply, &client).await {
            Ok(success) => success,
            Err(error) => {
                return Err(match explain_failure(&mux, error, plan) {
                    HandshakeError::Exited { refusal: None, .. }
                        if plan == HandshakePlan::Prefer(Era::Session) && began.elapsed() >= LATE_EXIT =>
                    {
                        HandshakeError::ExitedLate(mux.exit_error(Delivery::MaybeSent))
                    }
                    error => error,
                });
            }
        };
    if handshake.revision.era() == Era::Session {
        mux.enable_session();
        if matches!(peer, Peer::Remote) {
            // Log messages may arrive on another stream than the response, and later.
            mux.remember_last_client();
        }
    }
    if let Some(info) = &handshake.server_info {
        mux.set_server_info(shorten_server_info(info));
    }
    let connection = Connection {
        server: spec.id.clone(),
        is_shared: context.owner.key.is_shared(),
        mux,
        peer,
        handshake,
        client_info: client.info,
        settings: RwLock::new(Arc::new(CallSettings::from_spec(spec))),
        message_limit,
        call_queue: FairQueue::new(spec.limits.in_flight.get()),
        subscriptions: ResourceSubscriptions::default(),
        task_only_tools: TaskOnlyTools::default(),
        client_lists: ClientLists::default(),
    };
    Ok(Connected { connection, refused_era })
}

/// Turns a handshake error into a better one if the peer is evidently not an MCP server.
fn explain_failure(mux: &Mux, error: HandshakeError, plan: HandshakePlan) -> HandshakeError {
    let cause = match &error {
        HandshakeError::Exited { .. } => mux.exit_error(Delivery::MaybeSent),
        HandshakeError::Failed(error) | HandshakeError::ExitedLate(error) => error.clone(),
    };
    let exited_as_if_done = || {
        let success = cause.exit_report().is_some_and(|report| report.exit == Some(ProcessExit::Status(0)));
        let is_last_attempt = matches!(plan, HandshakePlan::Session(_) | HandshakePlan::AfterExit(_));
        success && !mux.has_spoken_mcp() && is_last_attempt
    };
    let reason = match mux.not_mcp_reason() {
        Some(reason) => format!("{reason}: it is not an MCP server"),
        None if cause.kind() == ErrorKind::Lost && exited_as_if_done() => {
            let output = match mux.first_garbage_line() {
                Some(line) => format!("wrote `{line}`, which is not a message, and exited with status 0"),
                None => "exited immediately with status 0 and no output".to_owned(),
            };
            format!("it {output}: it is not an MCP server, or an argument is missing")
        }
        None => return error,
    };
    HandshakeError::Failed(
        Error::new(ErrorKind::CouldNotStart, reason).with_class(FailureClass::Misconfigured),
    )
}

/// Classifies a failed start whose error has no class yet. A remote server that is down is unreachable, not
/// misconfigured.
fn failure_class(spec: &ServerSpec, error: &Error) -> FailureClass {
    let remote = matches!(spec.endpoint, Endpoint::Http(_));
    match error.class() {
        Some(FailureClass::Misconfigured) if remote && error.kind() == ErrorKind::BadReply => {
            FailureClass::Unreachable
        }
        Some(class) => class,
        None if remote => FailureClass::Unreachable,
        None if error.kind() == ErrorKind::Lost => FailureClass::Crashed,
        None => FailureClass::Refused,
    }
}

fn misconfigured(reason: String) -> Error {
    Error::new(ErrorKind::CouldNotStart, reason).with_class(FailureClass::Misconfigured)
}

/// Returns the hint for a secret without a value.
fn secret_hint(name: &str, error: &SecretError) -> Hint {
    match error {
        SecretError::NotFound => Hint::SetSecret { name: name.to_owned() },
        SecretError::Locked(hint) => Hint::Text(hint.clone()),
        SecretError::Failed(_) => Hint::CheckSecrets,
    }
}

async fn open_process(
    spec: &ServerSpec,
    command: &CommandSpec,
    context: &LaunchContext,
    secrets_and_redactor: &SecretsAndRedactor,
    message_limit: MessageLimit,
) -> Result<(Mux, Peer), Error> {
    let SecretsAndRedactor { secrets, redactor } = secrets_and_redactor;
    let LaunchContext { tasks, running, spawner, stderr, .. } = context;
    let spawned = ServerProcess::spawn(
        command,
        SpawnContext { spawner, stderr, tasks, live_processes: running, secrets, redactor },
    )
    .await;
    let (process, stdin, stdout) = spawned.map_err(|error| spawn_failure(spec, error))?;
    let writer = InputPipe::new(stdin);
    let direct_input = Some(writer.direct());
    let transport = StdioTransport {
        reader: OutputPipe::new(stdout),
        writer,
        direct_input,
        message_limit,
        exited: process.exited_plus_linger(),
        exit_report: process.exit_report(),
    };
    Ok((context.new_mux(spec, redactor.clone(), transport), Peer::Process(process)))
}

fn spawn_failure(spec: &ServerSpec, error: SpawnError) -> Error {
    let SpawnError { message, class, missing_program } = error;
    let error = Error::new(ErrorKind::CouldNotStart, message).with_class(class);
    match missing_program {
        Some(program) => error.with_hint(Hint::InstallProgram { server: spec.id.clone(), program }),
        None => error,
    }
}

async fn open_remote(
    spec: &ServerSpec,
    remote: &HttpSpec,
    context: &LaunchContext,
    secrets_and_redactor: &SecretsAndRedactor,
    message_limit: MessageLimit,
) -> Result<(Mux, Peer), Error> {
    let SecretsAndRedactor { secrets, redactor } = secrets_and_redactor;
    let transport = http::open(spec, remote, secrets, redactor, context, message_limit).await;
    let transport = transport.map_err(misconfigured)?;
    Ok((context.new_mux(spec, redactor.clone(), transport), Peer::Remote))
}

fn open_in_process(
    spec: &ServerSpec,
    server: &InProcessServer,
    context: &LaunchContext,
    message_limit: MessageLimit,
) -> (Mux, Peer) {
    let (ours, theirs) = tokio::io::duplex(PIPE_CAPACITY);
    // Runs in its own task, so that a panic does not reach the supervisor.
    let server = server.0.clone();
    let serving = server.clone();
    let served = async move { serving.serve(theirs).await };
    let task = AbortOnDropHandle::new(context.tasks.spawn_boxed(context.running.track_future(served)));
    let transport = InProcessTransport { pipe: ours, message_limit };
    (context.new_mux(spec, Arc::default(), transport), Peer::InProcess(task, InProcessServer(server)))
}

/// Wraps the cause of a failed start and redacts secrets in it.
fn start_error(spec: &ServerSpec, cause: &Error, redactor: &Redactor) -> Error {
    let server = &spec.id;
    let kind = match cause.kind() {
        ErrorKind::AuthNeeded => ErrorKind::AuthNeeded,
        _ => ErrorKind::CouldNotStart,
    };
    let reason = cause.exit_report().map_or_else(|| cause.to_string(), ToString::to_string);
    let error = Error::new(kind, format!("`{server}` could not start: {}", redactor.redact(&reason)));
    let error = match cause.own_hint() {
        Some(hint) => {
            let hint = hint.clone().map_text(|text| redactor.redact(text).into_owned());
            error.with_server(server).with_hint(hint)
        }
        None => error.with_server(server),
    };
    let error = match cause.retry_in() {
        Some(wait) => error.with_retry_in(wait),
        None => error,
    };
    match cause.exit_report() {
        Some(report) => error.with_exit_report(report.clone()),
        None => error,
    }
}
