//! Who asks the server.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use http_body_util::Empty;
use hyper::{
    body::{Bytes, Incoming},
    client::conn::http2::{Builder, SendRequest},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore, SignatureScheme, SupportedProtocolVersion,
        client::ResolvesClientCert,
        crypto::{CryptoProvider, ring},
        pki_types::{CertificateDer, ServerName, pem::PemObject as _},
        sign::CertifiedKey,
        version::{TLS12, TLS13},
    },
};

use super::pki::{Authority, Identity};

/// Far longer than anything here takes.
pub(super) const LONG: Duration = Duration::from_secs(60);

/// All versions that there are, and the older one alone.
pub(super) static BOTH: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];
pub(super) static ONLY_1_2: &[&SupportedProtocolVersion] = &[&TLS12];
/// HTTP/2 and nothing else.
pub(super) const H2_ALONE: &[&[u8]] = &[b"h2"];

/// What a client speaks.
pub(super) struct Speaks {
    pub(super) versions: &'static [&'static SupportedProtocolVersion],
    pub(super) alpn: &'static [&'static [u8]],
    pub(super) provider: CryptoProvider,
    /// Shows its certificate without a look at whether the key is that of it.
    pub(super) is_forged: bool,
}

/// A certificate and a key, which need not be its own.
#[derive(Debug)]
struct Forged(Arc<CertifiedKey>);

impl ResolvesClientCert for Forged {
    fn resolve(&self, _authorities: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl Default for Speaks {
    fn default() -> Self {
        Self { versions: BOTH, alpn: &[], provider: ring::default_provider(), is_forged: false }
    }
}

pub(super) type Stream = TlsStream<TcpStream>;

/// Connects with a certificate or without, believing what an authority has signed.
pub(super) async fn connect(
    address: SocketAddr,
    believed: &Authority,
    identity: Option<&Identity>,
    speaks: Speaks,
) -> std::io::Result<Stream> {
    connect_over(TcpStream::connect(address).await?, believed, identity, speaks).await
}

/// As [`connect`], over a connection that is there.
pub(super) async fn connect_over(
    stream: TcpStream,
    believed: &Authority,
    identity: Option<&Identity>,
    speaks: Speaks,
) -> std::io::Result<Stream> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(believed.pem.as_bytes()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(speaks.provider));
    let builder = builder.with_protocol_versions(speaks.versions).unwrap().with_root_certificates(roots);
    let mut config = match identity {
        Some(identity) if speaks.is_forged => {
            let key = ring::sign::any_supported_type(&identity.key).unwrap();
            let shown = CertifiedKey::new(identity.chain.clone(), key);
            builder.with_client_cert_resolver(Arc::new(Forged(Arc::new(shown))))
        }
        Some(identity) => {
            builder.with_client_auth_cert(identity.chain.clone(), identity.key.clone_key()).unwrap()
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = speaks.alpn.iter().map(|name| name.to_vec()).collect();
    let name = ServerName::try_from("localhost").unwrap();
    timeout(LONG, TlsConnector::from(Arc::new(config)).connect(name, stream)).await.expect("a handshake")
}

/// Who asks by HTTP/2.
pub(super) type Http2 = SendRequest<Empty<Bytes>>;

/// How HTTP/2 is spoken, where nothing else is said.
pub(super) fn usual_http2() -> Builder<TokioExecutor> {
    Builder::new(TokioExecutor::new())
}

/// Speaks HTTP/2 over a connection.
pub(super) async fn http2(stream: Stream, speaks: &Builder<TokioExecutor>) -> Http2 {
    let (sender, connection) = speaks.handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// Has the answer to a request, as far as its body.
pub(super) async fn send(client: &Http2, request: http::request::Builder) -> http::Response<Incoming> {
    let answer = client.clone().send_request(request.body(Empty::new()).unwrap());
    timeout(LONG, answer).await.unwrap().unwrap()
}

pub(super) async fn get(client: &Http2, path: &str) -> http::Response<Incoming> {
    send(client, http::Request::get(format!("https://localhost{path}"))).await
}

/// Status, head and body of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: String,
}

/// Sends bytes and reads one answer. `None` when the connection has ended instead.
pub(super) async fn ask<S>(stream: &mut S, request: &[u8]) -> Option<Answer>
where
    S: AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    // It may have been refused before all of it was sent.
    drop(stream.write_all(request).await);
    drop(stream.flush().await);
    read_answer(stream, request.starts_with(b"HEAD ")).await
}

pub(super) async fn read<S: AsyncRead + Unpin>(stream: &mut S) -> Option<Answer> {
    read_answer(stream, false).await
}

async fn read_answer<S: AsyncRead + Unpin>(stream: &mut S, has_no_body: bool) -> Option<Answer> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        let count = timeout(LONG, stream.read_buf(&mut bytes)).await.expect("an answer").ok()?;
        if count == 0 {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length = length.filter(|_| !has_no_body);
    let length = end + length.map_or(0, |length| length.parse::<usize>().unwrap());
    while bytes.len() < length {
        let count = timeout(LONG, stream.read_buf(&mut bytes)).await.expect("a body").ok()?;
        assert!(count > 0, "the body was cut off");
    }
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Some(Answer { status, head, body: String::from_utf8(bytes[end..].to_vec()).unwrap() })
}

/// A request as `curl` sends it, with more headers.
pub(super) fn request(method: &str, path: &str, headers: &str) -> Vec<u8> {
    format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n").into_bytes()
}
