//! What a person can do about a failed handshake.

use std::error::Error;

use rustls::{AlertDescription, CertificateError, Error as Tls};

/// Explains an error by the failed handshake among its causes. `None`: no handshake failed.
pub fn explain(error: &(dyn Error + 'static)) -> Option<&'static str> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(tls) = error.downcast_ref::<Tls>() {
            return Some(of_tls(tls));
        }
        // An alert that comes after the handshake passes through HTTP/2, which keeps only the text.
        if let Some(alert) = ALERTS.iter().find(|alert| {
            let text = Tls::AlertReceived(**alert).to_string();
            error.to_string().ends_with(&text)
        }) {
            return Some(of_tls(&Tls::AlertReceived(*alert)));
        }
        // An I/O error does not name what it wraps as its source, but that one's source.
        let wrapped = error
            .downcast_ref::<std::io::Error>()
            .and_then(std::io::Error::get_ref)
            .map(|wrapped| wrapped as &(dyn Error + 'static));
        cause = wrapped.or_else(|| error.source());
    }
    None
}

/// What a server says of a certificate that it does not take.
const ALERTS: [AlertDescription; 6] = [
    AlertDescription::CertificateExpired,
    AlertDescription::UnknownCA,
    AlertDescription::BadCertificate,
    AlertDescription::CertificateUnknown,
    AlertDescription::CertificateRevoked,
    AlertDescription::DecryptError,
];

fn of_tls(error: &Tls) -> &'static str {
    use CertificateError::*;
    match error {
        Tls::InvalidCertificate(UnknownIssuer | BadSignature) => {
            "its certificate is not of the authority that is trusted here: this is another cluster, or its authority was replaced; \
             log in or join again with the pin that `muster-coordinator pin` prints there"
        }
        Tls::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }) => {
            "its certificate is not for this name or address; add it there with `muster-coordinator init --name NAME`"
        }
        Tls::InvalidCertificate(Expired | ExpiredContext { .. }) => {
            "its certificate has expired, or the clock of this machine is wrong"
        }
        Tls::InvalidCertificate(NotValidYet | NotValidYetContext { .. }) => {
            "its certificate is not valid yet: the clock of this machine or of the coordinator is wrong"
        }
        Tls::AlertReceived(AlertDescription::CertificateExpired) => {
            "the certificate of this side has expired; log in or join again with a new token"
        }
        Tls::AlertReceived(
            AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateRevoked
            | AlertDescription::DecryptError,
        ) => {
            "it does not accept the certificate of this side: that is of another cluster; log in or join again with a new token"
        }
        Tls::InvalidMessage(_) => "it does not speak TLS; is it http:// instead of https://?",
        _ => "the TLS handshake failed",
    }
}
