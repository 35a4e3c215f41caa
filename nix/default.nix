# Everything that the flake offers, put together. Each file here has one subject and its own check.
{
  system,
  source,
  revision,
}:
let
  pins = import ./pins.nix {
    inherit system;
    locks = source + "/locks";
  };
  bootstrap = import ./bootstrap.nix { inherit system pins; };
  step = import ./step.nix { inherit system bootstrap source; };
  wheels = import ./wheels.nix { inherit pins step source; };
  layers = import ./layers.nix {
    inherit
      pins
      step
      wheels
      source
      ;
  };
  app = import ./app.nix {
    inherit
      bootstrap
      step
      source
      ;
    runner = images.stableLayers.runner;
  };
  images = import ./images.nix {
    inherit
      bootstrap
      pins
      step
      layers
      app
      source
      revision
      ;
  };
  bundle = import ./bundle.nix {
    inherit
      bootstrap
      app
      images
      source
      ;
  };
  checks = import ./checks.nix {
    inherit
      pins
      wheels
      bootstrap
      step
      layers
      images
      app
      ;
  };
in
{
  inherit pins checks;
  inherit (images) pinned sets;

  packages = {
    inherit (app) qualify;
    inherit (bundle) bundle-offline;
  }
  // images.packages;

  # What the outputs are made of, for whoever wants to build or look at one part.
  parts = {
    inherit (bootstrap) python;
    inherit (app) environment;
    inherit (images) layouts;
    # Layers by image and title, such as layers.runner.project.
    layers = builtins.mapAttrs (
      _: list:
      builtins.listToAttrs (
        map (layer: {
          name = layer.title;
          value = layer;
        }) list
      )
    ) images.layers;
  };
}
