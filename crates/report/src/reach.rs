//! Why a collector could not be reached, in words: for the nodes that report and for the people who ask.

/// What to do about the error of an HTTP client; `None` if it says enough itself.
pub fn what_to_do(url: &str, error: &str) -> Option<&'static str> {
    let has = |text: &str| error.contains(text);
    let is_tls = url.starts_with("https://");
    Some(match () {
        () if has("CaUsedAsEndEntity") => {
            "the collector's certificate is an authority's own: give it a server certificate that this authority signed"
        }
        () if has("UnknownIssuer") => {
            "the collector's certificate is signed by no known authority: name that authority's certificate (--ca-file; on a node --report-ca-file)"
        }
        () if has("NotValidForName") => "the collector's certificate is for another name: use that name in the URL",
        () if has("CertExpired") || has("Expired") => "the collector's certificate has expired",
        () if is_tls && has("InvalidContentType") => {
            "the collector speaks plain HTTP there: write http://, or start it with --tls-cert"
        }
        () if !is_tls && has("http parse fail") => "the collector speaks TLS there: write https://",
        () => return None,
    })
}
