//! Connections to receivers: name, port and TLS, each within a time.

use std::{fs, path::Path, sync::Arc, time::Duration};

use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

/// For name and connection, and again for the handshake. A firewall that drops everything costs as much with each attempt.
const CONNECT: Duration = Duration::from_secs(10);

pub(super) async fn connect(host: &str, port: u16) -> Result<TcpStream, String> {
    let connected = timeout(CONNECT, TcpStream::connect((host, port))).await;
    let shown = match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    };
    connected
        .map_err(|_| format!("no connection within {} s", CONNECT.as_secs()))?
        .map_err(|e| format!("connect to {shown}: {e}"))
}

/// TLS over this stream, with a certificate for this name.
pub(super) async fn secured<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    host: &str,
    tls: &Arc<ClientConfig>,
) -> Result<TlsStream<S>, String> {
    let name = ServerName::try_from(host.to_owned()).map_err(|e| e.to_string())?;
    let connecting = TlsConnector::from(tls.clone()).connect(name, stream);
    let stream = timeout(CONNECT, connecting).await;
    stream
        .map_err(|_| format!("no TLS handshake within {} s", CONNECT.as_secs()))?
        .map_err(|e| format!("TLS: {e}"))
}

/// Whom TLS trusts: the authorities in this file, or those of the machine.
pub(super) fn trusting(file: Option<&Path>) -> Result<Arc<ClientConfig>, String> {
    let mut roots = RootCertStore::empty();
    match file {
        Some(path) => {
            let shown = path.display();
            let pem = fs::read(path).map_err(|e| format!("read {shown}: {e}"))?;
            for certificate in CertificateDer::pem_slice_iter(&pem) {
                let certificate = certificate.map_err(|e| format!("{shown}: {e:?}"))?;
                roots
                    .add(certificate)
                    .map_err(|e| format!("{shown}: {e}"))?;
            }
            if roots.is_empty() {
                return Err(format!("{shown} holds no certificate"));
            }
        }
        // A machine without any is told with the first address that it cannot verify.
        None => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?;
    Ok(Arc::new(
        config.with_root_certificates(roots).with_no_client_auth(),
    ))
}

/// The beginning of an answer, in one line, for people.
pub(super) fn one_line(answer: &[u8]) -> String {
    const SHOWN: usize = 200;
    let text = String::from_utf8_lossy(answer);
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = words.join(" ");
    line.chars()
        .filter(|c| !c.is_control())
        .take(SHOWN)
        .collect()
}
