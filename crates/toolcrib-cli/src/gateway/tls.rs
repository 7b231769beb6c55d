//! TLS of the public listener. Its files are read again when they change; files that cannot be used leave the last ones in force.

use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use toolcrib::config::{Problem, ProblemScope, TlsSpec};
use toolcrib::util::clock;
use toolcrib::util::format::format_timestamp;
use toolcrib::util::locks::IgnorePoison as _;
use toolcrib_serve::{ConnectionPeer, OpenedConnection};

use super::client_certificate::{read_expiry, read_names};
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
}

/// The certificates and the key in use.
#[derive(Debug)]
struct LoadedTls {
    config: Arc<ServerConfig>,
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
                state.in_use = loaded;
                state.problem = None;
                drop(state);
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
            let _ = tokio::task::spawn_blocking(move || tls.reload_if_changed()).await;
        }
    }

    /// Performs the handshake of a connection.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    pub(super) async fn accept(
        self: Arc<Self>,
        mut stream: TcpStream,
        peer: ConnectionPeer,
    ) -> io::Result<OpenedConnection<TlsStream<TcpStream>>> {
        let mut first = [0];
        if stream.peek(&mut first).await? == 1 && first[0] != HANDSHAKE_RECORD {
            stream.write_all(PLAIN_HTTP_RESPONSE).await?;
            stream.shutdown().await?;
            return Err(io::Error::new(ErrorKind::InvalidData, "the client does not speak TLS"));
        }
        let acceptor = TlsAcceptor::from(self.state().in_use.config.clone());
        let io = acceptor.accept(stream).await?;
        let certificate = match io.get_ref().1.peer_certificates() {
            Some([certificate, ..]) => {
                let unreadable = || io::Error::new(ErrorKind::InvalidData, "the certificate cannot be read");
                Some(read_names(certificate).ok_or_else(unreadable)?)
            }
            _ => None,
        };
        Ok(OpenedConnection { io, peer: peer.with_tls(certificate) })
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
    let builder = match &spec.client_ca {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let roots = Arc::new(read_roots(file)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
            // Callers with a token need no certificate.
            let verifier = verifier.allow_unauthenticated().build();
            builder.with_client_cert_verifier(
                verifier.map_err(|error| file_problem(file, error.to_string(), CERTIFICATES_HINT))?,
            )
        }
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
    Ok(LoadedTls { config: Arc::new(config), cert: spec.cert.clone(), expires })
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
