// Logs in like a person: opens the URL in Chromium, fills in the login form and agrees, until the browser is sent back to toolcrib
// or, for a login with a device code, there is nothing left to agree to.
//
//     CHROMIUM=path node oauth_browser.mjs URL

import { chromium } from "playwright-core";

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox"] });
const page = await browser.newPage();
await page.goto(process.argv[2]);
// A login form, then a page that asks for consent; servers without pages redirect at once.
while (!new URL(page.url()).pathname.startsWith("/callback") && (await page.locator("button[type=submit]").count())) {
    const name = page.locator("input[name=login]");
    if (await name.count()) {
        await name.fill("person");
        await page.locator("input[name=password]").fill("password");
    }
    await Promise.all([page.waitForNavigation(), page.locator("button[type=submit]").first().click()]);
}
console.log(await page.textContent("body"));
await browser.close();
