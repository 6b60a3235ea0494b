//! A server that answers who asked, and proxies to it.

use std::{
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures::stream;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Bytes, Frame},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        RootCertStore, ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
        server::WebPkiClientVerifier,
    },
};
use x509_cert::der::Decode as _;

/// So many requests for `/together` are answered when all of them have come.
pub(super) const TOGETHER: usize = 40;

/// Signs certificates.
pub(in crate::cluster) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    pub(in crate::cluster) fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    pub(in crate::cluster) fn pem(&self) -> String {
        self.pem.clone()
    }

    fn signed(&self, name: &str, hosts: &[&str]) -> (String, String) {
        let mut params =
            CertificateParams::new(hosts.iter().map(|&host| host.to_owned()).collect::<Vec<_>>()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    /// The certificate of a client, and its key.
    pub(in crate::cluster) fn client(&self, name: &str) -> (String, String) {
        self.signed(name, &[])
    }

    fn acceptor(&self, hosts: &[&str], is_http2: bool) -> TlsAcceptor {
        let (certificate, key) = self.signed("server", hosts);
        let provider = Arc::new(ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.pem.as_bytes()).unwrap()).unwrap();
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(clients.allow_unauthenticated().build().unwrap())
            .with_single_cert(
                vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
            )
            .unwrap();
        if is_http2 {
            config.alpn_protocols = vec![b"h2".to_vec()];
        }
        TlsAcceptor::from(Arc::new(config))
    }
}

/// A server at loopback; it ends with the test.
pub(in crate::cluster) struct Server {
    port: u16,
    seen: Arc<Counts>,
    silence: watch::Sender<()>,
}

/// What a server has seen.
#[derive(Default)]
struct Counts {
    connections: AtomicUsize,
    open: AtomicUsize,
    requests: AtomicUsize,
}

impl Server {
    pub(in crate::cluster) async fn start(authority: &Authority, hosts: &[&str]) -> Self {
        Self::start_with(authority, hosts, None).await
    }

    /// One that speaks HTTP/2, with so many streams on a connection.
    pub(in crate::cluster) async fn start_http2(authority: &Authority, hosts: &[&str], streams: u32) -> Self {
        Self::start_with(authority, hosts, Some(streams)).await
    }

    async fn start_with(authority: &Authority, hosts: &[&str], streams: Option<u32>) -> Self {
        let acceptor = authority.acceptor(hosts, streams.is_some());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Counts::default());
        let all = Arc::clone(&seen);
        let (silence, silenced) = watch::channel(());
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (acceptor, seen, mut silenced) = (acceptor.clone(), Arc::clone(&all), silenced.clone());
                seen.connections.fetch_add(1, Ordering::SeqCst);
                seen.open.fetch_add(1, Ordering::SeqCst);
                silenced.mark_unchanged();
                tokio::spawn(async move {
                    let mut served = pin!(serve(acceptor, stream, streams, Arc::clone(&seen)));
                    tokio::select! {
                        // Clients that do not trust it go.
                        served = &mut served => drop(served),
                        // It stays open, and nobody reads it any more.
                        Ok(()) = silenced.changed() => std::future::pending().await,
                    }
                    seen.open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Self { port, seen, silence }
    }

    /// Nothing more comes on the connections that there are, and they stay open.
    pub(in crate::cluster) fn silence(&self) {
        self.silence.send_replace(());
    }

    /// How many there are.
    pub(in crate::cluster) fn open(&self) -> usize {
        self.seen.open.load(Ordering::SeqCst)
    }

    /// How many were made to it.
    pub(in crate::cluster) fn connections(&self) -> usize {
        self.seen.connections.load(Ordering::SeqCst)
    }

    /// How many requests have come.
    pub(in crate::cluster) fn requests(&self) -> usize {
        self.seen.requests.load(Ordering::SeqCst)
    }

    pub(in crate::cluster) fn port(&self) -> u16 {
        self.port
    }

    pub(in crate::cluster) fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }
}

async fn serve(
    acceptor: TlsAcceptor,
    stream: TcpStream,
    streams: Option<u32>,
    seen: Arc<Counts>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let stream = acceptor.accept(stream).await?;
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first()).map(|der| {
        let certificate = x509_cert::Certificate::from_der(der).unwrap();
        let subject = certificate.tbs_certificate.subject.to_string();
        subject.trim_start_matches("CN=").to_owned()
    });
    let answer = service_fn(move |request: Request<hyper::body::Incoming>| {
        seen.requests.fetch_add(1, Ordering::SeqCst);
        let text = |name| request.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        let said = json!({
            "authorization": text(header::AUTHORIZATION),
            "agent": text(header::USER_AGENT),
            "certificate": certificate,
        });
        let seen = Arc::clone(&seen);
        async move { Ok::<_, std::convert::Infallible>(answer(request, said.to_string(), &seen).await) }
    });
    if let Some(streams) = streams {
        let mut server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        server.max_concurrent_streams(streams);
        return Ok(server.serve_connection(TokioIo::new(stream), answer).await?);
    }
    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await?;
    Ok(())
}

type Answer = UnsyncBoxBody<Bytes, std::convert::Infallible>;

/// Takes what is sent, knows no lease and refuses one, has a watch that tells nothing and never ends, and says who asks.
async fn answer(request: Request<hyper::body::Incoming>, said: String, seen: &Counts) -> Response<Answer> {
    let text = |text: String| Response::new(Full::new(Bytes::from(text)).boxed_unsync());
    let path = request.uri().path().to_owned();
    match path.as_str() {
        "/together" => {
            while seen.requests.load(Ordering::SeqCst) < TOGETHER {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        }
        "/never" => std::future::pending().await,
        "/watch" => {
            let nothing = stream::pending::<Result<Frame<Bytes>, std::convert::Infallible>>();
            return Response::new(StreamBody::new(nothing).boxed_unsync());
        }
        _ => {}
    }
    if request.method() != Method::GET {
        let sent = request.into_body().collect().await.map(http_body_util::Collected::to_bytes);
        return text(String::from_utf8(sent.unwrap_or_default().to_vec()).unwrap());
    }
    let (code, reason) = match path.rsplit_once("/leases/") {
        None => return text(said),
        Some((_, "refused")) => (StatusCode::INTERNAL_SERVER_ERROR, "InternalError"),
        Some(_) => (StatusCode::NOT_FOUND, "NotFound"),
    };
    let status = json!({ "kind": "Status", "code": code.as_u16(), "reason": reason });
    let mut answer = text(status.to_string());
    *answer.status_mut() = code;
    answer
}

/// A proxy that leads to a server, whatever name is asked for.
pub(in crate::cluster) struct Proxy {
    port: u16,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    connections: AtomicUsize,
    authorization: Mutex<Option<String>>,
}

impl Proxy {
    pub(in crate::cluster) async fn start(scheme: &'static str, authority: &Authority, to: u16) -> Self {
        let acceptor = authority.acceptor(&["127.0.0.1"], false);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Seen::default());
        let all = Arc::clone(&seen);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (acceptor, seen) = (acceptor.clone(), Arc::clone(&all));
                tokio::spawn(async move {
                    match scheme {
                        "https" => drop(tunnel(acceptor.accept(stream).await.unwrap(), to, &seen).await),
                        "http" => drop(tunnel(stream, to, &seen).await),
                        _ => drop(socks(stream, to, &seen).await),
                    }
                });
            }
        });
        Self { port, seen }
    }

    pub(in crate::cluster) fn port(&self) -> u16 {
        self.port
    }

    pub(in crate::cluster) fn connections(&self) -> usize {
        self.seen.connections.load(Ordering::SeqCst)
    }

    pub(in crate::cluster) fn authorization(&self) -> Option<String> {
        self.seen.authorization.lock().unwrap().clone()
    }
}

async fn tunnel(stream: impl AsyncRead + AsyncWrite + Unpin, to: u16, seen: &Seen) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    loop {
        line.clear();
        stream.read_line(&mut line).await?;
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("proxy-authorization: ") {
            let value = line[line.len() - value.len()..].trim().to_owned();
            *seen.authorization.lock().unwrap() = Some(value);
        }
        if line.trim().is_empty() {
            break;
        }
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
    pass(stream, to, seen).await
}

async fn socks(mut stream: TcpStream, to: u16, seen: &Seen) -> std::io::Result<()> {
    let mut head = [0; 2];
    stream.read_exact(&mut head).await?;
    let mut methods = vec![0; usize::from(head[1])];
    stream.read_exact(&mut methods).await?;
    stream.write_all(&[5, 0]).await?;
    // A name: the proxy is to find where it is.
    let mut request = [0; 5];
    stream.read_exact(&mut request).await?;
    assert_eq!(request[3], 3, "the type of the address");
    let mut rest = vec![0; usize::from(request[4]) + 2];
    stream.read_exact(&mut rest).await?;
    stream.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await?;
    pass(stream, to, seen).await
}

async fn pass(mut stream: impl AsyncRead + AsyncWrite + Unpin, to: u16, seen: &Seen) -> std::io::Result<()> {
    seen.connections.fetch_add(1, Ordering::SeqCst);
    let mut server = TcpStream::connect(("127.0.0.1", to)).await?;
    tokio::io::copy_bidirectional(&mut stream, &mut server).await.map(drop)
}
