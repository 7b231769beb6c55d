//! TLS of the public listener. Its files are read again when they change; files that cannot be used leave the last ones in force.

use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, SystemTime};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio::io::AsyncWriteExt as _;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use toolcrib::config::{Problem, ProblemScope, TlsSpec};
use toolcrib::util::clock;
use toolcrib::util::format::format_timestamp;
use toolcrib::util::locks::IgnorePoison as _;
use toolcrib_serve::{ConnectionPeer, HttpGateway, OpenedConnection, StreamFuture, serve_after_handshake};

use super::client_certificate::{CertificateConnection, read_expiry, read_names};
use super::connection_threads::MovableStream;
use crate::command_error::{CommandError, ProblemReport};
use crate::sources::FileStamp;

/// Time between two looks at the files.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// First byte of a TLS connection: a handshake record.
const HANDSHAKE_RECORD: u8 = 0x16;
/// Answer to a client that does not speak TLS.
const PLAIN_HTTP_RESPONSE: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\
    Content-Length: 36\r\n\r\nthis address serves https, not http\n";

/// TLS with the files of a config.
#[derive(Debug)]
pub(crate) struct ServerTls {
    state: Mutex<TlsState>,
}

#[derive(Debug)]
struct TlsState {
    spec: TlsSpec,
    /// The files when they were read last.
    read_files: TlsFileStamps,
    /// The files at the last look.
    seen_files: TlsFileStamps,
    in_use: LoadedTls,
    /// Why the files cannot be used, if they were read without success.
    problem: Option<ProblemReport>,
    /// Open connections whose client presented a certificate.
    connections: Vec<Weak<CertificateConnection>>,
}

/// The certificates and the key in use.
#[derive(Debug)]
struct LoadedTls {
    config: Arc<ServerConfig>,
    /// Verifies certificates of clients; absent if they are not asked for one.
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    cert: PathBuf,
    expires: Option<SystemTime>,
}

/// Identifies the content of the files without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TlsFileStamps([Option<FileStamp>; 3]);

impl TlsFileStamps {
    fn read(spec: &TlsSpec) -> Self {
        let stamp = |path: &Path| FileStamp::read(path);
        Self([stamp(&spec.cert), stamp(&spec.key), spec.client_ca.as_deref().and_then(stamp)])
    }
}

impl ServerTls {
    /// Reads the files.
    ///
    /// # Errors
    /// If a file cannot be used.
    pub(crate) fn open(spec: &TlsSpec) -> Result<Self, CommandError> {
        let read_files = TlsFileStamps::read(spec);
        let in_use = load(spec).map_err(|problem| CommandError::config_problem(&problem))?;
        let tls = Self {
            state: Mutex::new(TlsState {
                spec: spec.clone(),
                seen_files: read_files.clone(),
                read_files,
                in_use,
                problem: None,
                connections: Vec::new(),
            }),
        };
        tls.problem().into_iter().for_each(|problem| tracing::warn!("{problem}"));
        Ok(tls)
    }

    fn state(&self) -> MutexGuard<'_, TlsState> {
        self.state.lock().ignore_poison()
    }

    /// Returns what is wrong with the files: those read last cannot be used, or the certificate in use has expired.
    pub(super) fn problem(&self) -> Option<ProblemReport> {
        let state = self.state();
        let expired = state.in_use.expires.filter(|expires| *expires <= clock::wall_time());
        state.problem.clone().or_else(|| {
            let message = format!("the certificate expired at {}", format_timestamp(expired?));
            let hint = "replace the file; the gateway reads it again by itself";
            Some(ProblemReport::new(&file_problem(&state.in_use.cert, message, hint)))
        })
    }

    /// Reads the files of a new config. If they cannot be used, the last ones stay in force.
    pub(super) fn reload(&self, spec: &TlsSpec) {
        let read_files = TlsFileStamps::read(spec);
        let loaded = load(spec);
        let mut state = self.state();
        state.spec = spec.clone();
        state.seen_files = read_files.clone();
        state.read_files = read_files;
        match loaded {
            Ok(loaded) => {
                let verifier = loaded.verifier.clone();
                state.in_use = loaded;
                state.problem = None;
                drop(state);
                self.close_connections(|connection| !connection.is_accepted_by(verifier.as_deref()));
                self.problem().into_iter().for_each(|problem| tracing::warn!("{problem}"));
            }
            Err(problem) => {
                tracing::warn!("{problem}; the last certificate stays in use");
                state.problem = Some(ProblemReport::new(&problem));
            }
        }
    }

    /// Reads the files again if they have changed and are the same at two looks: certificate and key are not replaced at the
    /// same time.
    fn reload_if_changed(&self) {
        let spec = self.state().spec.clone();
        let files = TlsFileStamps::read(&spec);
        let mut state = self.state();
        let has_settled = state.seen_files == files;
        let has_changed = state.read_files != files;
        state.seen_files = files;
        drop(state);
        if has_changed && has_settled {
            self.reload(&spec);
            tracing::info!("read the files of `listen.tls` again");
        }
    }

    /// Reads the files again when they change, until `stop`.
    pub(super) async fn watch(self: Arc<Self>, stop: CancellationToken) {
        while stop.run_until_cancelled(sleep(POLL_INTERVAL)).await.is_some() {
            let tls = self.clone();
            // A panic has been logged.
            let _ = tokio::task::spawn_blocking(move || {
                tls.reload_if_changed();
                let now = clock::wall_time();
                tls.close_connections(|connection| connection.has_expired(now));
            })
            .await;
        }
    }

    /// Closes the open connections to which this applies.
    fn close_connections(&self, must_close: impl Fn(&CertificateConnection) -> bool) {
        let mut state = self.state();
        state.connections.retain(|connection| connection.strong_count() > 0);
        let connections = state.connections.clone();
        drop(state);
        for connection in connections.iter().filter_map(Weak::upgrade) {
            if must_close(&connection) {
                connection.close();
            }
        }
    }

    /// Serves a connection until it ends, or until the certificate of its client is no longer accepted.
    ///
    /// # Cancel safety
    /// As [`serve_after_handshake`].
    pub(super) async fn serve(
        self: Arc<Self>,
        stream: MovableStream,
        peer: ConnectionPeer,
        http: Arc<HttpGateway>,
        stop: CancellationToken,
    ) -> Option<StreamFuture> {
        let connection = Arc::<CertificateConnection>::default();
        let handshake = self.accept(stream, peer, connection.clone());
        let served = serve_after_handshake(handshake, http, stop);
        let stream = connection.closed().run_until_cancelled(served).await??;
        if !connection.has_certificate() {
            return Some(stream);
        }
        Some(Box::pin(async move {
            // The stream has ended or is dropped, which closes the connection.
            let _ = connection.closed().run_until_cancelled(stream).await;
        }))
    }

    /// Performs the handshake of a connection.
    async fn accept(
        self: Arc<Self>,
        mut stream: MovableStream,
        peer: ConnectionPeer,
        connection: Arc<CertificateConnection>,
    ) -> io::Result<OpenedConnection<TlsStream<MovableStream>>> {
        let mut first = [0];
        if stream.get()?.peek(&mut first).await? == 1 && first[0] != HANDSHAKE_RECORD {
            stream.write_all(PLAIN_HTTP_RESPONSE).await?;
            stream.shutdown().await?;
            return Err(io::Error::new(ErrorKind::InvalidData, "the client does not speak TLS"));
        }
        let config = self.state().in_use.config.clone();
        let io = TlsAcceptor::from(config.clone()).accept(stream).await?;
        let certificate = match io.get_ref().1.peer_certificates() {
            Some(chain @ [certificate, ..]) => {
                let unreadable = || io::Error::new(ErrorKind::InvalidData, "the certificate cannot be read");
                let names = read_names(certificate).ok_or_else(unreadable)?;
                connection.set_certificate(chain);
                self.add_connection(&connection, &config);
                Some(names)
            }
            _ => None,
        };
        Ok(OpenedConnection { io, peer: peer.with_tls(certificate) })
    }

    /// Adds an open connection, and checks its certificate again if other files were read since its handshake began.
    fn add_connection(&self, connection: &Arc<CertificateConnection>, used: &Arc<ServerConfig>) {
        let mut state = self.state();
        state.connections.push(Arc::downgrade(connection));
        if Arc::ptr_eq(&state.in_use.config, used) {
            return;
        }
        let verifier = state.in_use.verifier.clone();
        drop(state);
        if !connection.is_accepted_by(verifier.as_deref()) {
            connection.close();
        }
    }
}

/// Returns the problem with the TLS files of a config.
pub(crate) fn find_tls_problem(spec: &TlsSpec) -> Option<Problem> {
    load(spec).err().map(|problem| *problem)
}

fn file_problem(file: &Path, message: impl Into<String>, hint: &str) -> Box<Problem> {
    Box::new(Problem {
        file: file.to_owned(),
        position: None,
        scope: ProblemScope::WholeConfig,
        message: message.into(),
        hint: Some(hint.to_owned()),
    })
}

/// Reads the files and checks that they belong together.
fn load(spec: &TlsSpec) -> Result<LoadedTls, Box<Problem>> {
    let certificates = read_certificates(&spec.cert, "listen.tls.cert")?;
    let expires = certificates.first().and_then(|certificate| read_expiry(certificate));
    let key = read_key(&spec.key)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| file_problem(&spec.cert, error.to_string(), "report this as a bug"))?;
    let verifier = spec.client_ca.as_deref().map(|file| load_verifier(file, provider)).transpose()?;
    let builder = match &verifier {
        None => builder.with_no_client_auth(),
        Some(verifier) => builder.with_client_cert_verifier(verifier.clone()),
    };
    let mut config = builder.with_single_cert(certificates, key).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            let message = format!("the key does not belong to the certificate `{}`", spec.cert.display());
            file_problem(&spec.key, message, "write the key and the certificate that were issued together")
        }
        error => file_problem(&spec.cert, format!("cannot be used: {error}"), CERTIFICATES_HINT),
    })?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    if spec.client_ca.is_some() {
        // A resumed session would skip the check of a certificate that has expired since.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    Ok(LoadedTls { config: Arc::new(config), verifier, cert: spec.cert.clone(), expires })
}

/// Reads the authorities whose certificates clients may present. Callers with a token need no certificate.
fn load_verifier(
    file: &Path,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, Box<Problem>> {
    let roots = Arc::new(read_roots(file)?);
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
    let verifier = verifier.allow_unauthenticated().build();
    verifier.map_err(|error| file_problem(file, error.to_string(), CERTIFICATES_HINT))
}

const CERTIFICATES_HINT: &str =
    "write a file with certificates in PEM, which begin with `-----BEGIN CERTIFICATE-----`";

fn read_file(file: &Path, key: &str) -> Result<Vec<u8>, Box<Problem>> {
    std::fs::read(file).map_err(|error| {
        let hint = match error.kind() {
            ErrorKind::PermissionDenied => "let the gateway's user read the file".to_owned(),
            _ => format!("write the file, or change `{key}`"),
        };
        file_problem(file, format!("cannot read the file of `{key}`: {error}"), &hint)
    })
}

fn read_certificates(file: &Path, key: &str) -> Result<Vec<CertificateDer<'static>>, Box<Problem>> {
    let text = read_file(file, key)?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match certificates {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        Ok(_) => Err(file_problem(file, "has no certificate in PEM", CERTIFICATES_HINT)),
        Err(error) => Err(file_problem(file, format!("is not valid PEM: {error}"), CERTIFICATES_HINT)),
    }
}

fn read_roots(file: &Path) -> Result<RootCertStore, Box<Problem>> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(file, "listen.tls.client-ca")? {
        roots.add(certificate).map_err(|error| {
            file_problem(file, format!("has an invalid certificate: {error}"), CERTIFICATES_HINT)
        })?;
    }
    Ok(roots)
}

/// Reads the private key, unless every user of the machine can do so too.
fn read_key(file: &Path) -> Result<PrivateKeyDer<'static>, Box<Problem>> {
    let text = read_file(file, "listen.tls.key")?;
    let mode = std::fs::metadata(file).map_or(0, |metadata| metadata.mode());
    if mode & 0o007 != 0 {
        let message =
            format!("the private key can be used by every user of this machine (mode {:o})", mode & 0o777);
        return Err(file_problem(file, message, &format!("chmod 600 {}", file.display())));
    }
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| {
        let hint = "write a file with an unencrypted private key in PEM, which begins with `-----BEGIN PRIVATE KEY-----`";
        file_problem(file, format!("has no private key in PEM: {error}"), hint)
    })
}
