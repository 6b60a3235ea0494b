//! Just enough of HTTPS to ask a node's server without an API server between: one request per connection, with a client certificate or
//! a token, and connections on which something else is spoken afterwards.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::authority::Pair;
use crate::http::{self, Answer};

/// A connection.
pub type Stream = StreamOwned<ClientConnection, TcpStream>;

const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Of everything that is waited for on a connection.
const LIMIT: Duration = Duration::from_secs(60);
/// Longest head of an answer.
const HEAD_MAX: usize = 16 * 1024;

/// Who asks.
#[derive(Debug, Clone)]
pub struct Client {
    at: SocketAddr,
    config: Arc<ClientConfig>,
    token: Option<String>,
}

impl Client {
    /// Asks at an address, whose server has a certificate of the authority; with a certificate of its own, if any.
    ///
    /// # Errors
    /// A file cannot be used.
    pub fn new(at: SocketAddr, authority: &Path, own: Option<&Pair>) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        let shown = authority.display();
        for certificate in
            CertificateDer::pem_file_iter(authority).with_context(|| format!("read {shown}"))?
        {
            roots.add(certificate.with_context(|| format!("read {shown}"))?)?;
        }
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let config = match own {
            None => config.with_no_client_auth(),
            Some(own) => {
                let chain = CertificateDer::pem_file_iter(&own.certificate)?.collect::<Result<_, _>>()?;
                config.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(&own.key)?)?
            }
        };
        Ok(Self { at, config: Arc::new(config), token: None })
    }

    /// The same with a bearer token.
    #[must_use]
    pub fn with_token(&self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self.clone() }
    }

    /// A connection of which TLS has begun.
    ///
    /// # Errors
    /// Nobody listens, or TLS fails.
    pub fn connect(&self) -> Result<Stream> {
        let at = self.at;
        let tcp =
            TcpStream::connect_timeout(&at, CONNECT_LIMIT).with_context(|| format!("connect to {at}"))?;
        tcp.set_read_timeout(Some(LIMIT))?;
        tcp.set_write_timeout(Some(LIMIT))?;
        tcp.set_nodelay(true)?;
        let name = ServerName::IpAddress(at.ip().into());
        let mut stream = StreamOwned::new(ClientConnection::new(Arc::clone(&self.config), name)?, tcp);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock).with_context(|| format!("begin TLS with {at}"))?;
        }
        Ok(stream)
    }

    /// Asks for something.
    ///
    /// # Errors
    /// No connection, or no answer that makes sense.
    pub fn get(&self, path: &str) -> Result<Answer> {
        self.request("GET", path)
    }

    /// Asks with another method, and without a body.
    ///
    /// # Errors
    /// As of [`Self::get`].
    pub fn request(&self, method: &str, path: &str) -> Result<Answer> {
        let mut stream = self.connect()?;
        let head = self.head(method, path, "HTTP/1.0", &[("Content-Length", "0")]);
        stream.write_all(head.as_bytes())?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).with_context(|| format!("{method} {path}"))?;
        http::parse(&answer).with_context(|| format!("{method} {path}"))
    }

    /// Asks to speak something else. The answer is the head; when it is 101, the connection is at the first byte of the other protocol.
    ///
    /// # Errors
    /// As of [`Self::get`].
    pub fn upgrade(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Result<(Answer, Stream)> {
        let mut stream = self.connect()?;
        let headers = [&[("Connection", "Upgrade")], headers].concat();
        stream.write_all(self.head(method, path, "HTTP/1.1", &headers).as_bytes())?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            ensure!(head.len() < HEAD_MAX, "{method} {path}: a head without an end");
            let mut byte = [0];
            if stream.read(&mut byte).with_context(|| format!("{method} {path}"))? == 0 {
                bail!("{method} {path}: {:?} and then the end", String::from_utf8_lossy(&head));
            }
            head.extend(byte);
        }
        Ok((http::parse(&head).with_context(|| format!("{method} {path}"))?, stream))
    }

    fn head(&self, method: &str, path: &str, version: &str, headers: &[(&str, &str)]) -> String {
        let token = self.token.iter().map(|token| format!("Authorization: Bearer {token}\r\n"));
        let headers = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n"));
        let headers: String = token.chain(headers).collect();
        format!("{method} {path} {version}\r\nHost: {}\r\n{headers}\r\n", self.at)
    }
}
