//! An authority that signs certificates, of a cluster or made on the spot.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::files;
use crate::node::system;

/// A certificate and its key, in files.
#[derive(Debug, Clone)]
pub struct Pair {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// What a certificate is for.
#[derive(Debug, Clone, Copy)]
pub enum Use {
    /// Whoever asks: a name, and the groups.
    Client {
        /// `CN`.
        name: &'static str,
        /// `O`; none when it is empty.
        group: &'static str,
    },
    /// A server at an address.
    Server(IpAddr),
}

/// An authority.
#[derive(Debug)]
pub struct Authority {
    dir: PathBuf,
    own: Pair,
}

impl Authority {
    /// One whose certificate and key are there; what it signs is kept in `dir`.
    #[must_use]
    pub fn of(dir: &Path, own: Pair) -> Self {
        Self { dir: dir.to_owned(), own }
    }

    /// Makes one in a directory.
    ///
    /// # Errors
    /// openssl failed.
    pub fn make(dir: &Path) -> Result<Self> {
        files::make_dir(dir)?;
        let own = pair(dir, "ca");
        let [out, key] = texts(&own);
        let what = ["-x509", "-days", "2", "-subj", "/CN=lab authority", "-out", &out, "-keyout", &key];
        system("openssl", &[&["req"], &NEW_KEY[..], &what].concat())?;
        Ok(Self::of(dir, own))
    }

    /// Its own certificate.
    #[must_use]
    pub fn certificate(&self) -> &Path {
        &self.own.certificate
    }

    /// Signs a certificate that is valid for two days; `file` names it.
    ///
    /// # Errors
    /// openssl failed.
    pub fn sign(&self, file: &str, of: Use) -> Result<Pair> {
        self.sign_for(file, of, 2)
    }

    /// Signs one that has ended yesterday.
    ///
    /// # Errors
    /// openssl failed.
    pub fn sign_ended(&self, file: &str, of: Use) -> Result<Pair> {
        self.sign_for(file, of, -1)
    }

    fn sign_for(&self, file: &str, of: Use, days: i32) -> Result<Pair> {
        files::make_dir(&self.dir)?;
        let made = pair(&self.dir, file);
        let (request, extensions) =
            (self.dir.join(format!("{file}.csr")), self.dir.join(format!("{file}.ext")));
        let [subject, extended] = of.says();
        files::write(&extensions, extended)?;
        let [out, key] = texts(&made);
        let [ca, ca_key] = texts(&self.own);
        let [request, extensions] = [request.display().to_string(), extensions.display().to_string()];
        let asks = ["-new", "-subj", &subject, "-out", &request, "-keyout", &key];
        system("openssl", &[&["req"], &NEW_KEY[..], &asks].concat())?;
        let days = days.to_string();
        let signs = ["x509", "-req", "-in", &request, "-CA", &ca, "-CAkey", &ca_key, "-CAcreateserial"];
        let with = ["-days", &days, "-extfile", &extensions, "-out", &out];
        system("openssl", &[&signs[..], &with].concat()).with_context(|| format!("sign {file}"))?;
        Ok(made)
    }
}

const NEW_KEY: [&str; 5] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];

impl Use {
    /// Its subject, and its extensions.
    fn says(self) -> [String; 2] {
        match self {
            Self::Client { name, group } => {
                let of = if group.is_empty() { String::new() } else { format!("/O={group}") };
                [format!("{of}/CN={name}"), "extendedKeyUsage=clientAuth\n".to_owned()]
            }
            Self::Server(address) => [
                format!("/CN={address}"),
                format!("extendedKeyUsage=serverAuth\nsubjectAltName=IP:{address}\n"),
            ],
        }
    }
}

fn pair(dir: &Path, name: &str) -> Pair {
    Pair { certificate: dir.join(format!("{name}.crt")), key: dir.join(format!("{name}.key")) }
}

fn texts(pair: &Pair) -> [String; 2] {
    [pair.certificate.display().to_string(), pair.key.display().to_string()]
}
