//! A server that listens on loopback, with endpoints that say what they were asked.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use berth_core::server::{Debugging, Endpoint, Places};
use futures::{StreamExt as _, stream};
use http::{HeaderValue, Request, StatusCode, header};
use hyper::{
    body::{Bytes, Incoming},
    client::conn::http2::Builder,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpSocket, TcpStream},
    runtime::Handle,
    sync::watch,
    time::timeout,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{crypto::ring, sign::CertifiedKey},
};

use super::{
    super::{
        Requests, Response,
        answer::{of, streamed, text},
        authenticate::{Authenticator, Tokens},
        authorize::{Access, Authorizer, Kept},
        client_ca::ClientCa,
        connection::Times,
        connections::Connections,
        dispatch::{Answers, Gate},
        hang_up::HangUp,
        heads,
        lanes::{Lane, WHOLE},
        listen,
        parts::OfUser,
        requests::UnderWay,
        review::Reviewer,
        thread, tls,
    },
    api::Api,
    client::{Answer, H2_ALONE, Http2, LONG, Speaks, Stream, ask, connect, connect_over, http2, request},
    pki::{Authority, Identity},
};
use crate::config::{TlsSettings, TlsVersion};

/// Longer than any test.
const NEVER: Duration = Duration::from_secs(3600);

/// Who connects from here comes from [`ELSEWHERE`], as far as the server knows: what is of loopback is the node's own.
const AS_IF_ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
/// An address of nobody (RFC 5737).
const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

/// Who says what somebody may.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Decides {
    /// The API server.
    Webhook,
    /// Nobody, of those who are known.
    AlwaysAllow,
    /// Nobody of anybody: it is the read-only port.
    ReadOnly,
}

/// How a server is to be.
pub(super) struct Settings {
    pub(super) tls: TlsSettings,
    pub(super) anonymous: bool,
    pub(super) decides: Decides,
    /// How long what the API server says is kept.
    pub(super) keep: Duration,
    pub(super) times: Times,
    pub(super) places: Places,
    /// Bytes of heads of those who were not let in.
    pub(super) heads: usize,
    /// Bytes of those of others that wait.
    pub(super) heads_of_admitted: usize,
    /// Authorities of clients, in place of the world's own.
    pub(super) client_ca: Option<ClientCa>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            tls: TlsSettings { least: TlsVersion::Tls12, suites: None, groups: None },
            anonymous: false,
            decides: Decides::Webhook,
            keep: NEVER,
            times: Times {
                handshake: NEVER,
                first: NEVER,
                idle: NEVER,
                end: NEVER,
                taken: NEVER,
                streamed: NEVER,
            },
            places: Places::SERVER,
            heads: heads::ALL_BYTES,
            heads_of_admitted: heads::ALL_BYTES,
            client_ca: None,
        }
    }
}

/// The server and its surroundings.
pub(super) struct World {
    pub(super) address: SocketAddr,
    pub(super) api: Api,
    /// Of clients.
    pub(super) authority: Authority,
    /// Of the server.
    pub(super) of_server: Authority,
    pub(super) presented: watch::Sender<Option<Arc<CertifiedKey>>>,
    /// How many answers are being made or taken that have no end of their own.
    pub(super) endless: watch::Receiver<usize>,
    pub(super) requests: Requests,
    /// Where answers are made that are kept as a whole.
    pub(super) whole: Lane,
}

impl World {
    pub(super) async fn start(settings: Settings) -> Self {
        let (api, authority, of_server) = (Api::default(), Authority::new(), Authority::new());
        let reviewer = || Reviewer::new(api.clients(), Handle::current()).without_pauses();
        let authorizer = if settings.decides == Decides::AlwaysAllow {
            Authorizer::AlwaysAllow
        } else {
            let (reviewer, kept) = (Some(reviewer()), Kept::default());
            let (allowed, denied) = (settings.keep, settings.keep);
            Authorizer::Webhook(Access { reviewer, node: "node-1".into(), allowed, denied, kept })
        };
        let authenticator = Authenticator {
            client_ca: Some(settings.client_ca.unwrap_or_else(|| ClientCa::fixed(&authority.pem))),
            tokens: Some(Tokens::new(reviewer(), settings.keep).unwrap()),
            anonymous: settings.anonymous,
        };
        let (echo, requests) = (Echo::default(), Requests::new().unwrap());
        let (endless, whole) = (echo.endless.subscribe(), echo.whole.clone());
        let counted = requests.clone();
        let is_read_only = settings.decides == Decides::ReadOnly;
        let port = if is_read_only {
            thread::read_only_port(echo, requests)
        } else {
            let gate = Gate { authenticator, authorizer };
            let mut port = thread::main_port(echo, gate, Debugging::On { logs: true }, requests);
            let fresh = Arc::get_mut(&mut port).unwrap();
            let Settings { times, places, heads, heads_of_admitted, .. } = settings;
            (fresh.times, fresh.connections) =
                (times, Connections::with_heads(places, heads, heads_of_admitted));
            port
        };
        let (presented, presenting) = watch::channel(Some(certificate(&of_server)));
        let config = tls::config(&settings.tls, presenting, true).unwrap();
        let acceptor = (!is_read_only).then(|| TlsAcceptor::from(Arc::new(config)));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let mut take = |stream, mut peer: SocketAddr| {
                if peer.ip() == AS_IF_ELSEWHERE {
                    peer.set_ip(ELSEWHERE);
                }
                port.take(stream, peer, acceptor.clone());
            };
            listen::accept(&listener, &mut take).await;
        });
        Self { address, api, authority, of_server, presented, endless, requests: counted, whole }
    }

    pub(super) async fn connect(&self, identity: Option<&Identity>) -> Stream {
        connect(self.address, &self.of_server, identity, Speaks::default()).await.unwrap()
    }

    /// A connection of HTTP/2.
    pub(super) async fn http2(&self, identity: Option<&Identity>, speaks: &Builder<TokioExecutor>) -> Http2 {
        let stream = TcpStream::connect(self.address).await.unwrap();
        self.http2_over(stream, identity, speaks).await
    }

    pub(super) async fn http2_over(
        &self,
        stream: TcpStream,
        identity: Option<&Identity>,
        speaks: &Builder<TokioExecutor>,
    ) -> Http2 {
        let alone = Speaks { alpn: H2_ALONE, ..Speaks::default() };
        http2(connect_over(stream, &self.of_server, identity, alone).await.unwrap(), speaks).await
    }

    /// A connection that comes from elsewhere, as far as the server knows.
    pub(super) async fn elsewhere(&self) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((AS_IF_ELSEWHERE, 0).into()).unwrap();
        socket.connect(self.address).await.unwrap()
    }

    /// Asks on a connection of its own.
    pub(super) async fn ask(
        &self,
        identity: Option<&Identity>,
        method: &str,
        path: &str,
        headers: &str,
    ) -> Answer {
        let mut stream = self.connect(identity).await;
        ask(&mut stream, &request(method, path, headers)).await.expect("an answer")
    }

    /// Waits until so many answers without an end are under way.
    pub(super) async fn has_endless(&self, count: usize) {
        let mut endless = self.endless.clone();
        timeout(LONG, endless.wait_for(|now| *now == count)).await.expect("answers").unwrap();
    }

    pub(super) async fn status(&self, identity: Option<&Identity>, path: &str) -> u16 {
        self.ask(identity, "GET", path, "").await.status
    }

    pub(super) async fn status_of_token(&self, token: &str, path: &str) -> u16 {
        self.ask(None, "GET", path, &format!("Authorization: Bearer {token}\r\n")).await.status
    }
}

/// A further certificate of the server.
pub(super) fn certificate(of: &Authority) -> Arc<CertifiedKey> {
    let Identity { chain, key } = of.server();
    Arc::new(CertifiedKey::from_der(chain, key, &ring::default_provider()).unwrap())
}

/// Says what was asked; a stream says back what it is told. The query may ask for `never`, an answer that is never made, for `waits`, one
/// that waits for its second piece, for so many `bytes`, and for as many that are made as a `whole`.
#[derive(Clone)]
pub(super) struct Echo {
    endless: watch::Sender<usize>,
    whole: Lane,
}

impl Default for Echo {
    fn default() -> Self {
        Self { endless: watch::Sender::default(), whole: Lane::new(WHOLE) }
    }
}

/// An answer that has no end of its own.
struct Endless(watch::Sender<usize>);

impl Endless {
    fn new(endless: &watch::Sender<usize>) -> Self {
        endless.send_modify(|count| *count += 1);
        Self(endless.clone())
    }
}

impl Drop for Endless {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl Answers for Echo {
    async fn answer(&self, endpoint: Endpoint, mut request: Request<Incoming>) -> Response {
        assert!(!request.headers().contains_key(header::AUTHORIZATION), "nobody is to know it");
        assert!(request.extensions().get::<OfUser>().is_some(), "users have a part of places");
        assert!(request.extensions().get::<UnderWay>().is_some(), "a session is under way to its end");
        let protocols = request.headers().get_all(header::SEC_WEBSOCKET_PROTOCOL).into_iter();
        let mut protocols =
            protocols.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
        assert!(!protocols.any(|protocol| protocol.trim().starts_with("base64url.bearer.")), "nor that one");
        match request.uri().query().unwrap_or_default().split_once('=') {
            Some(("never", _)) => {
                let _endless = Endless::new(&self.endless);
                return std::future::pending().await;
            }
            Some(("waits", _)) => {
                let endless = Endless::new(&self.endless);
                let pieces = stream::once(async { Ok(Bytes::from_static(b"first")) });
                let forever = stream::once(async move {
                    let _endless = endless;
                    std::future::pending().await
                });
                return streamed("text/plain", pieces.chain(forever));
            }
            Some(("bytes", count)) => {
                let bytes = Counted(vec![b'x'; count.parse().unwrap()], Endless::new(&self.endless));
                return of(StatusCode::OK, "text/plain", Bytes::from_owner(bytes));
            }
            Some(("whole", count)) => {
                // Until it was made.
                let _endless = Endless::new(&self.endless);
                let bytes = vec![b'x'; count.parse().unwrap()];
                let whole = self.whole.of(request.extensions());
                return whole.answer(move || of(StatusCode::OK, "text/plain", bytes)).await;
            }
            _ => {}
        }
        if !request.headers().contains_key(header::UPGRADE) {
            return text(StatusCode::OK, &format!("{endpoint:?}"));
        }
        assert!(request.extensions().get::<HangUp>().is_some(), "a stream is to know when it is for nobody");
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let Ok(stream) = upgrade.await else { return };
            let (mut reader, mut writer) = tokio::io::split(TokioIo::new(stream));
            drop(tokio::io::copy(&mut reader, &mut writer).await);
            drop(writer.shutdown().await);
        });
        let mut response = text(StatusCode::SWITCHING_PROTOCOLS, "");
        for (name, value) in [(header::CONNECTION, "Upgrade"), (header::UPGRADE, "SPDY/3.1")] {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

/// Bytes that are counted for as long as they are in memory.
struct Counted(Vec<u8>, #[expect(dead_code, reason = "it counts by being there")] Endless);

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}
