# One check for each file here: what it must do, and what it must refuse.
{
  pins,
  wheels,
  bootstrap,
  step,
  layers,
  images,
  app,
}:
let
  inherit (builtins)
    attrNames
    concatStringsSep
    deepSeq
    filter
    head
    listToAttrs
    map
    tryEval
    ;

  # Facts that evaluation alone decides; the name of a false one is the error.
  facts =
    name: table:
    let
      wrong = filter (fact: !table.${fact}) (attrNames table);
    in
    if wrong == [ ] then
      bootstrap.shell {
        name = "check-${name}";
        script = "echo '${concatStringsSep "; " (attrNames table)}' > $out";
      }
    else
      throw "check ${name}: not so: ${concatStringsSep "; " wrong}";

  refused = value: !(tryEval (deepSeq value true)).success;
  accepted = value: (tryEval (deepSeq value true)).success;

  # A builder that must end with an error that holds `says`.
  refusal =
    {
      name,
      builder,
      spec,
      says,
    }:
    bootstrap.shell {
      name = "check-refused-${name}";
      modules = step.modules builder;
      python = bootstrap.python;
      specification = builtins.toJSON spec;
      passAsFile = [ "specification" ];
      inherit says;
      script = ''
        export PATH=$python/usr/bin:$PATH PYTHONPATH=$modules PYTHONHASHSEED=0
        if specPath=$specificationPath out=$PWD/made \
          python3.13 -P -s -S -m qualify.images.building.${builder} 2> said; then
          echo "was built, and should have been refused: $says"
          exit 1
        fi
        cat said
        grep -qF "$says" said
        cp said $out
      '';
    };

  oneOf = set: name: head (filter (package: package.name == name) (pins.pythonSet set).packages);
  click = wheels.pin (oneOf "launcher" "click");
  netbase = pins.debian.package "netbase";
  deb = name: {
    inherit name;
    inherit (netbase) version path;
  };
  package = name: version: {
    inherit name version;
    set = "test";
    file = "${name}-${version}-py3-none-any.whl";
  };

  ownLayer = step.run {
    name = "layer-check";
    builder = "wheel_layer";
    spec = {
      title = "check";
      wheels = [ click ];
    };
  };

  refusals = map refusal [
    {
      name = "two-debian-packages-own-one-path";
      builder = "debian_layer";
      spec = {
        title = "check";
        base = false;
        packages = [
          (deb "first")
          (deb "second")
        ];
      };
      says = "two packages own";
    }
    {
      name = "two-wheels-own-one-path";
      builder = "wheel_layer";
      spec = {
        title = "check";
        wheels = [
          (click // { name = "first"; })
          (click // { name = "second"; })
        ];
      };
      says = "two packages own";
    }
    {
      name = "two-layers-own-one-path";
      builder = "image_layout";
      spec = {
        layers = [
          ownLayer
          ownLayer
        ];
      };
      says = "two packages own";
    }
    {
      name = "what-is-no-wheel";
      builder = "wheel_layer";
      spec = {
        title = "check";
        wheels = [
          {
            name = "netbase";
            inherit (netbase) version path;
          }
        ];
      };
      says = "cannot be read as a wheel";
    }
    {
      name = "what-is-no-debian-package";
      builder = "debian_layer";
      spec = {
        title = "check";
        base = false;
        packages = [ click ];
      };
      says = "is no Debian package";
    }
  ];
in
{
  pins = facts "pins" {
    "a store name keeps what is allowed" = pins.storeName "a-b_1.0+c?=.deb" == "a-b_1.0+c?=.deb";
    "a store name gets a dash for the rest" = pins.storeName "a~b%c!d.deb" == "a-b-c-d.deb";
    "a locked package is found" = accepted (pins.debian.package "netbase");
    "a package that is not locked is refused" = refused (pins.debian.package "no-such-package");
    "a closure that is not locked is refused" = refused (pins.debian.closure "no-such-closure");
    "a lock of many Pythons is refused" = refused (pins.pythonSet "base").packages;
    "a lock of another schema is refused" = refused (pins.pythonSet "debian").packages;
    "one version twice is merged" =
      accepted (
        pins.merge [
          { packages = [ (package "a" "1") ]; }
          { packages = [ (package "a" "1") ]; }
        ]
      );
    "two versions are refused" =
      refused (
        pins.merge [
          { packages = [ (package "a" "1") ]; }
          { packages = [ (package "a" "2") ]; }
        ]
      );
  };

  wheels = facts "wheels" (
    listToAttrs (
      map (file: {
        name = "${file} fits";
        value = wheels.fits file;
      }) [
        "a-1-py3-none-any.whl"
        "a-1-py2.py3-none-any.whl"
        "a-1-1build-cp313-cp313-manylinux_2_28_x86_64.whl"
        "a-1-cp39-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
        "a-1-cp313-none-linux_x86_64.whl"
        "a-1-py3-none-manylinux1_x86_64.manylinux_2_5_x86_64.musllinux_1_1_x86_64.whl"
      ]
      ++ map (file: {
        name = "${file} does not fit";
        value = !(wheels.fits file);
      }) [
        "a-1-py2-none-any.whl"
        "a-1-cp312-cp312-manylinux_2_28_x86_64.whl"
        "a-1-cp314-abi3-manylinux_2_28_x86_64.whl"
        "a-1-cp313-cp313t-manylinux_2_28_x86_64.whl"
        "a-1-cp313-cp313-manylinux_2_28_aarch64.whl"
        "a-1-cp313-cp313-manylinux_2_42_x86_64.whl"
        "a-1-cp313-cp313-musllinux_1_2_x86_64.whl"
        "a-1-py3-none-macosx_11_0_arm64.whl"
        "a-1-py3-none-win_amd64.whl"
      ]
    )
    // {
      "a wheel for another platform is refused" = refused (
        wheels.require {
          set = "test";
          file = "a-1-py3-none-win_amd64.whl";
        }
      );
      "a layer that takes nothing is refused" = refused (
        wheels.deal "check" [
          {
            title = "first";
            names = [ "nothing-*" ];
          }
          { title = "last"; }
        ] [ (package "a" "1") ]
      );
      "the last layer takes what is left" =
        map (group: map (p: p.name) group.packages) (
          wheels.deal "check" [
            {
              title = "first";
              names = [ "a*" ];
            }
            { title = "last"; }
          ] [ (package "aa" "1") (package "b" "1") ]
        ) == [
          [ "aa" ]
          [ "b" ]
        ];
    }
  );

  layers = facts "layers" {
    "the base alone adds no layer" = layers.system "base" == null;
    "a closure without the base is refused" = refused (layers.system "build");
  };

  images = facts "images" {
    "every image ends with the same kind of layer" =
      filter (name: (builtins.elemAt images.layers.${name} (builtins.length images.layers.${name} - 1)).name != "layer-project") (attrNames images.layers)
      == [ ];
    "images share their lowest layer" =
      images.stableLayers.runner != [ ]
      && (head images.stableLayers.runner).outPath == (head images.stableLayers.llama-cpp-cpu).outPath;
  };

  builders = bootstrap.shell {
    name = "check-builders";
    inherit refusals;
    script = "cat $refusals > $out";
  };

  bootstrap = bootstrap.shell {
    name = "check-bootstrap";
    inherit (bootstrap) python;
    script = ''
      export PATH=$python/usr/bin:$PATH
      python3.13 -S -c 'import hashlib, lzma, multiprocessing, ssl, sys, zlib; print(sys.version)' > $out
      if python3.13 -S -c 'import numpy' 2> /dev/null; then echo "has more than Debian's Python"; exit 1; fi
    '';
  };

  app = bootstrap.shell {
    name = "check-app";
    inherit (app) qualify;
    script = ''
      export HOME=$NIX_BUILD_TOP
      $qualify/bin/qualify --version > $out
      $qualify/bin/qualify manifest check >> $out
      code=0
      $qualify/bin/qualify plan no-such-row 2>> $out || code=$?
      [ $code = 2 ]
    '';
  };
}
