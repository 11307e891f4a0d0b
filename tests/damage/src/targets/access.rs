//! What joins and logins read: names, pins, addresses, credentials files and certificates.

use std::{fmt, str::FromStr};

use muster_rpc::{
    Address,
    credentials::Credentials,
    identity::{Principal, TrustDomain},
    tls::Pin,
    uri_names::{UriNames, UriPattern},
};

/// A text in the form of one of the names. What was read is written as it is read again.
pub(super) fn names(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    again::<Principal>(text);
    again::<TrustDomain>(text);
    again::<Pin>(text);
    again::<UriPattern>(text);
    if let Ok(pattern) = text.parse::<UriPattern>() {
        let names = UriNames::new(&[pattern], &[]).expect("no pattern is for both");
        let uri = text.replace("{name}", "n7");
        let host = names.principal(&uri).expect("a name fits its pattern");
        assert_eq!(host.to_string(), "host/n7");
        assert_eq!(names.principal(text), None);
    }
    if let Ok(address) = text.parse::<Address>() {
        assert_eq!(address.to_string(), text);
        let _ = (address.host(), address.port(), address.is_loopback());
    }
}

fn again<T: FromStr + fmt::Display + PartialEq + fmt::Debug>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        assert_eq!(value.to_string().parse::<T>().ok(), Some(value));
    }
}

pub(super) fn name_seeds() -> Vec<Vec<u8>> {
    let pin = format!("sha256:{}", "0af3".repeat(16));
    let texts = [
        "host/node-1",
        "user/ann@example.org",
        "train.example.org",
        "spiffe://example.org/gpu/{name}/agent",
        &pin,
        "https://train.example.org:7070",
        "http://[::1]:7070",
    ];
    texts.map(|text| text.as_bytes().to_vec()).into()
}

/// A credentials file, whose certificates are read as far as that goes without a connection.
pub(super) fn credentials(input: &[u8]) {
    let Ok(read) = serde_json::from_slice::<Credentials>(input) else {
        return;
    };
    let text = serde_json::to_vec(&read).expect("what was read can be written");
    let again: Credentials = serde_json::from_slice(&text).expect("what was written can be read");
    assert_eq!(again.principal, read.principal);
    let _ = (read.is_due(0), read.is_due(u64::MAX));
    let _ = (
        Pin::of_pem(&read.authorities),
        Pin::of_pem(&read.certificate),
    );
}

pub(super) fn credentials_seeds() -> Vec<Vec<u8>> {
    let of = |certificate: &str| {
        serde_json::json!({
            "server": "https://train.example.org:7070", "principal": "host/node-1", "certificate": certificate, "key": "",
            "authorities": certificate, "notBeforeUs": 1_790_000_000_000_000u64, "notAfterUs": 1_792_592_000_000_000u64,
        })
    };
    [of(CERTIFICATE), of("")]
        .map(|seed| seed.to_string().into_bytes())
        .into()
}

/// A self-signed certificate with a SPIFFE name. Its key was thrown away.
const CERTIFICATE: &str = "\
-----BEGIN CERTIFICATE-----\n\
MIIBpzCCAU6gAwIBAgIUdP2j1My8hrlqBzLzL0SqAUV/rSwwCgYIKoZIzj0EAwIw\n\
DzENMAsGA1UEAwwEc2VlZDAeFw0yNjExMjMwODQ2MzlaFw0zNjExMjAwODQ2Mzla\n\
MA8xDTALBgNVBAMMBHNlZWQwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAASTkcIg\n\
m6hH6HrBCTNJ5pRtMD9isgMcVGg6Uc1oJ+UYLEzvQYkHT5JMDE6AW6s8WN7cEamr\n\
ndkX7ggv8f/bBjuNo4GHMIGEMB0GA1UdDgQWBBRzRuSXv5RQOIgTuVB94V7KAiNO\n\
njAfBgNVHSMEGDAWgBRzRuSXv5RQOIgTuVB94V7KAiNOnjAPBgNVHRMBAf8EBTAD\n\
AQH/MDEGA1UdEQQqMCiGJnNwaWZmZTovL3RyYWluLmV4YW1wbGUub3JnL2hvc3Qv\n\
bm9kZS0xMAoGCCqGSM49BAMCA0cAMEQCID4+AVOPJchF+rBMENHjpO3d3PirlQqK\n\
C/gfckKk7IZSAiAKdLCFyHYH8lTBkTCzmwTkpbO8VjlJTPI6JSwzgU2NIQ==\n\
-----END CERTIFICATE-----\n\
";
