# Fetches every pinned file from the lists of mirrors that nixpkgs keeps: the one output that needs a
# network, for a connected machine without a depot. Each file gets the fixed-output path that pins.nix
# gives it, so building this seeds the store.
{
  system,
  nixpkgs,
  pins,
  sets,
}:
let
  inherit (builtins)
    elemAt
    head
    match
    replaceStrings
    substring
    ;

  mirrors = import (nixpkgs + "/pkgs/build-support/fetchurl/mirrors.nix");

  fetch =
    url: file: sha256:
    derivation {
      name = pins.storeName file;
      system = "builtin";
      builder = "builtin:fetchurl";
      inherit url;
      outputHash = sha256;
      outputHashAlgo = "sha256";
      outputHashMode = "flat";
      executable = false;
      unpack = false;
      preferLocalBuild = true;
    };

  debian = package: fetch "${head mirrors.debian}${package.pool}" package.file package.sha256;

  # The layout of a Python package mirror: wheels by their Python tag, sources below `source`.
  python =
    package:
    let
      wheel = match "([^-]+)-[^-]+(-[0-9][^-]*)?-([^-]+)-[^-]+-[^-]+\\.whl" package.file;
      kind = if wheel == null then "source" else elemAt wheel 2;
      root = replaceStrings [ "/source/" ] [ "/" ] (head mirrors.pypi);
    in
    fetch "${root}${kind}/${substring 0 1 package.name}/${package.name}/${package.file}" package.file
      package.sha256;

  each =
    names: value:
    builtins.listToAttrs (
      map (name: {
        inherit name;
        value = value name;
      }) names
    );

  seed =
    name: files:
    derivation {
      inherit name system;
      builder = "${busybox}/busybox";
      args = [
        "sh"
        "-euc"
        ": > $out"
      ];
      inherit files;
    };

  # The static busybox is taken out of its package by nixpkgs' dpkg: the bytes are pinned, so it does
  # not matter by whom.
  busybox =
    let
      pkgs = import nixpkgs { inherit system; };
    in
    derivation {
      name = "busybox-elf";
      inherit system;
      builder = "${pkgs.bash}/bin/bash";
      PATH = "${pkgs.dpkg}/bin:${pkgs.coreutils}/bin";
      package = debian (pins.debian.package "busybox-static");
      args = [
        "-euc"
        ''
          dpkg-deb --fsys-tarfile $package > all.tar
          ${pkgs.gnutar}/bin/tar -xf all.tar ./usr/bin/busybox
          mkdir $out && cp usr/bin/busybox $out/busybox && chmod 0755 $out/busybox
        ''
      ];
      outputHash = pins.debian.busybox;
      outputHashAlgo = "sha256";
      outputHashMode = "recursive";
    };
in
{
  inherit busybox;
  debian = each pins.debian.closures (
    closure: seed "sources-debian-${closure}" (map debian (pins.debian.closure closure))
  );
  python = each sets (set: seed "sources-${set}" (map python (pins.pythonSet set).packages));
}
