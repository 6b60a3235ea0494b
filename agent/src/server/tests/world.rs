//! A server that listens on loopback, with endpoints that say what they were asked.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use berth_core::server::{Debugging, Endpoint, Places, ServerType};
use http::{HeaderValue, Request, StatusCode, header};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::{io::AsyncWriteExt as _, net::TcpListener, runtime::Handle, sync::watch};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{crypto::ring, sign::CertifiedKey},
};

use super::{
    super::{
        Requests, Response,
        answer::text,
        authenticate::{Authenticator, Tokens},
        authorize::{Access, Authorizer, Kept},
        client_ca::ClientCa,
        connection::{PLACES, Port, Times},
        connections::Connections,
        dispatch::{Answers, Gate, Refusals},
        listen,
        review::Reviewer,
        tls,
    },
    api::Api,
    client::{Answer, Speaks, Stream, ask, connect, request},
    pki::{Authority, Identity},
};
use crate::config::{TlsSettings, TlsVersion};

/// Longer than any test.
const NEVER: Duration = Duration::from_secs(3600);

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
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            tls: TlsSettings { least: TlsVersion::Tls12, suites: None, groups: None },
            anonymous: false,
            decides: Decides::Webhook,
            keep: NEVER,
            times: Times { handshake: NEVER, first: NEVER, idle: NEVER, end: NEVER },
            places: PLACES,
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
            client_ca: Some(ClientCa::fixed(&authority.pem)),
            tokens: Some(Tokens::new(reviewer(), settings.keep).unwrap()),
            anonymous: settings.anonymous,
        };
        let is_read_only = settings.decides == Decides::ReadOnly;
        let gate = (!is_read_only).then_some(Gate { authenticator, authorizer });
        let port = Arc::new(Port {
            answers: Echo,
            gate,
            debugging: if is_read_only { Debugging::Off } else { Debugging::On { logs: true } },
            server_type: ServerType::ReadWrite,
            requests: Requests::new().unwrap(),
            refusals: Refusals::default(),
            times: settings.times,
            connections: Connections::new(settings.places),
        });
        let (presented, presenting) = watch::channel(Some(certificate(&of_server)));
        let config = tls::config(&settings.tls, presenting, true).unwrap();
        let acceptor = (!is_read_only).then(|| TlsAcceptor::from(Arc::new(config)));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            listen::accept(&listener, &mut |stream, peer| port.take(stream, peer, acceptor.clone())).await;
        });
        Self { address, api, authority, of_server, presented }
    }

    pub(super) async fn connect(&self, identity: Option<&Identity>) -> Stream {
        connect(self.address, &self.of_server, identity, Speaks::default()).await.unwrap()
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

/// Says what was asked; a stream says back what it is told.
pub(super) struct Echo;

impl Answers for Echo {
    async fn answer(&self, endpoint: Endpoint, mut request: Request<Incoming>) -> Response {
        assert!(!request.headers().contains_key(header::AUTHORIZATION), "nobody is to know it");
        if !request.headers().contains_key(header::UPGRADE) {
            return text(StatusCode::OK, &format!("{endpoint:?}"));
        }
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
